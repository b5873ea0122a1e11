// SPDX-License-Identifier: Apache-2.0
//
// Moves the weights of experts to the ranks that help, and their gradients home, on the transfer stream. All
// ranks take part in every exchange, also those that move nothing: exchanges match by their order.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/row_kernels.hpp>
#include <plateau/all_to_all/weight_moves.hpp>
#include <plateau/config.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace plateau::inline v0::detail::dispatch {

template <class Engine, class Weight> class weight_transfer {
 public:
  explicit weight_transfer(Engine& e) : e_(&e) {}

  // Before the first round. Weights go out matrix by matrix, one of each home at a time, so that no rows have
  // to wait behind all of them.
  void begin() { wave_ = part_ = 0; }
  bool all_sent() const { return wave_ == e_->moves.waves() || e_->layout.parts() == 0; }
  // Lists the next matrices that move, until they are `bytes` of a home or all; for all ranks to exchange.
  // weights (local experts, parts); slots (foreign experts, weights of one).
  void list_next(view<Weight> slots, std::span<const tile<const Weight>> weights, index_t bytes) {
    e_->clear_lists();
    for (index_t listed = 0; listed < bytes && !all_sent(); advance()) {
      listed += e_->layout.extent(part_).elements() * index_t{sizeof(Weight)};
      for (const weight_move& m : e_->moves.all()) {
        if (m.wave != wave_) continue;
        if (m.home == me()) e_->send(m.helper, as_row(weights[place(m, part_)]));
        if (m.helper == me()) e_->receive(m.home, as_row(e_->layout.in_slot(slots, m.slot, part_)));
      }
    }
  }
  // Whether this rank has any gradient to send home or to receive.
  bool takes_part() const {
    const std::span<const weight_move> all = e_->moves.all();
    return std::any_of(all.begin(), all.end(),
                       [&](const weight_move& m) { return m.home == me() || m.helper == me(); });
  }

  // Wave by wave: `arriving` (weights of one expert) holds what has come home until it is added.
  template <class Stream>
  void send_home(Stream& transfer, view<float> slots, view<float> arriving,
                 std::span<const tile<float>> gradients) {
    const weight_layout& layout = e_->layout;
    for (index_t wave = 0; wave < e_->moves.waves(); ++wave) {
      e_->clear_lists();
      const weight_move* home = nullptr;
      for (const weight_move& m : e_->moves.all()) {
        if (m.wave != wave) continue;
        if (m.home == me()) home = &m;
        for (index_t p = 0; p < layout.parts(); ++p) {
          if (m.helper == me()) e_->send(m.home, as_row(layout.in_slot(slots, m.slot, p)));
          if (m.home == me()) e_->receive(m.helper, as_row(layout.in_slot(arriving, 0, p)));
        }
      }
      e_->comm->exchange(transfer, e_->sends, e_->receives, "gradients to their homes");
      for (index_t p = 0; home != nullptr && p < layout.parts(); ++p)
        e_->backend->launch(transfer, rows{layout.extent(p).rows}, add_matrix{},
                            in(layout.in_slot(arriving, 0, p)), inout(gradients[place(*home, p)]));
    }
  }

 private:
  void advance() {
    if (++part_ < e_->layout.parts()) return;
    part_ = 0;
    ++wave_;
  }
  int me() const { return e_->comm->rank(); }
  std::size_t place(const weight_move& m, index_t part) const {
    return static_cast<std::size_t>((m.expert - e_->table.homes().first(me())) * e_->layout.parts() + part);
  }

  Engine* e_;
  index_t wave_ = 0, part_ = 0; // the next to go out
};

} // namespace plateau::inline v0::detail::dispatch
