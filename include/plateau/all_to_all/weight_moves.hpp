// SPDX-License-Identifier: Apache-2.0
//
// The weights of experts that a rank computes for another one: sent ahead of use into a fixed number of
// slots, one for each piece of the rank, in the order of the plan. Their gradients are summed in fp32 where
// they arise, and go home when the last round is over: in waves, so that a home never receives more than one
// at a time and needs one slot, however many ranks have helped it. Each wave adds in the order of the plan,
// so that the sum has the same bits in every run.
#pragma once

#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::detail::dispatch {

// The parts of one expert's weights inside a slot, each at a multiple of 32 elements: products of parts that
// lie as well as those at home take the same path.
class weight_layout {
 public:
  explicit weight_layout(std::span<const matrix_extent> parts) : parts_(parts.begin(), parts.end()) {
    for (const matrix_extent& m : parts_) {
      first_.push_back(elements_);
      elements_ += padded_elements(m, elements_);
    }
  }
  // Of a slot. Unlike the constructor it allocates nothing.
  static index_t elements_of(std::span<const matrix_extent> parts) {
    index_t sum = 0;
    for (const matrix_extent& m : parts) sum += padded_elements(m, sum);
    return sum;
  }
  index_t parts() const { return static_cast<index_t>(parts_.size()); }
  index_t elements() const { return elements_; }
  std::span<const matrix_extent> extents() const { return parts_; }
  const matrix_extent& extent(index_t part) const { return parts_[static_cast<std::size_t>(part)]; }
  // Part `part` of the expert in slot `slot`.
  template <class T> tile<T> in_slot(view<T> slots, index_t slot, index_t part) const {
    const matrix_extent& m = extent(part);
    return as_matrix(slots.sub(slot * elements_ + first_[static_cast<std::size_t>(part)], m.elements()),
                     m.rows, m.cols);
  }

 private:
  static constexpr index_t step = 32;
  static index_t padded_elements(const matrix_extent& m, index_t before) {
    if (m.rows < 0 || m.cols < 0 ||
        (m.rows > 0 && m.cols > (std::numeric_limits<index_t>::max() - step - before) / m.rows))
      throw config_error("plateau: dispatch: a weight of " + std::to_string(m.rows) + " x " +
                         std::to_string(m.cols) + " elements cannot be");
    return (m.elements() + step - 1) / step * step;
  }
  std::vector<matrix_extent> parts_;
  std::vector<index_t> first_;
  index_t elements_ = 0;
};

// A piece, and where it stands: the slot at the rank that computes it, and the wave in which its gradient
// goes home.
struct weight_move {
  index_t expert = 0;
  int home = 0, helper = 0;
  index_t slot = 0, wave = 0;
};

class weight_moves {
 public:
  weight_moves(int ranks, index_t most_pieces) : slots_(static_cast<std::size_t>(ranks)), waves_(slots_) {
    moves_.reserve(static_cast<std::size_t>(most_pieces));
  }

  void build(const dispatch_plan& plan, const expert_homes& homes) {
    moves_.clear();
    waves_in_all_ = 0;
    std::fill(slots_.begin(), slots_.end(), 0);
    std::fill(waves_.begin(), waves_.end(), 0);
    for (const moved_piece& p : plan.pieces) {
      const int home = homes.home(p.expert);
      weight_move m{p.expert, home, p.rank, slots_[static_cast<std::size_t>(p.rank)]++,
                    waves_[static_cast<std::size_t>(home)]++};
      waves_in_all_ = std::max(waves_in_all_, m.wave + 1);
      moves_.push_back(m);
    }
  }
  std::span<const weight_move> all() const { return moves_; }
  index_t waves() const { return waves_in_all_; }

 private:
  std::vector<weight_move> moves_;
  std::vector<index_t> slots_, waves_; // (ranks)
  index_t waves_in_all_ = 0;
};

} // namespace plateau::inline v0::detail::dispatch
