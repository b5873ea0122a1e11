// SPDX-License-Identifier: Apache-2.0
//
// Weights and training state in one safetensors file: the fp32 masters under the published Mixtral names, and
// for a resumed run both moments under "first_moment." and "second_moment." + name. Rank 0 writes what the
// ranks that have it send it, piece by piece, so that no rank holds a second copy; every rank reads its own
// part. A file is the same however the ranks divide the model. What a file must hold is in state_check.hpp.
#pragma once

#include "safetensors.hpp"
#include "safetensors_writer.hpp"
#include "state_check.hpp"
#include "trainer.hpp"

#include <plateau/drain.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moe {

// What a state_mover will be asked for: it reserves no more.
struct state_moves {
  bool load = true, save = true;
};

inline constexpr index_t state_piece = index_t{1} << 18; // elements that move at a time

// What a rank reserves for these moves.
// `copies`: whether states on their way to another rank have to be copied.
inline pl::reservation moved_through(const parameter_layout& layout, const rank_grid& g, int rank,
                                     bool copies, const state_moves& moves) {
  // Whether rank 0 has not everything itself.
  const bool others_own_some =
      g.expert_parallel > 1 || std::any_of(layout.owned_elements.begin() + 1, layout.owned_elements.end(),
                                           [](index_t n) { return n != 0; });
  const bool writes = rank == 0;
  const std::size_t piece = static_cast<std::size_t>(state_piece) * sizeof(float);
  return {moves.save && (copies || (writes && others_own_some)) ? piece : 0,
          moves.load || (moves.save && (writes || copies)) ? piece : 0};
}

// Device memory of a trainer to and from the host, piece by piece through one pinned buffer. Make it before
// the first step, so that nothing is reserved when a run is over and would be lost.
template <class Trainer> class state_mover {
 public:
  static constexpr index_t piece = state_piece;

  explicit state_mover(Trainer& trainer, state_moves moves = {})
      : state_mover(trainer, moved_through(trainer.model().layout(), trainer.grid(), trainer.world().rank(),
                                           trainer.optimizer().copies_to_send(), moves)) {}

  // This rank's parameters, and its moments if the file has them to give. Then all ranks are ready to train.
  void load(const safetensors_reader& file, bool moments) {
    auto& t = *trainer_;
    t.optimizer().reset(t.stream());
    for (const parameter_group* group : t.model().layout().groups())
      for (const parameter& p : group->all())
        for (int which = 0; which < (moments ? 3 : 1); ++which)
          read(file, state_prefixes[static_cast<std::size_t>(which)] + p.name, *group, p, which);
    t.backend().wait(t.backend().record(t.stream()));
  }

  // Collective. Rank 0 writes the file; nothing is visible at `path` until it is whole. The caller closes the
  // step.
  void save(const std::string& path, const state_metadata& metadata) {
    auto& t = *trainer_;
    std::optional<safetensors_writer> file;
    if (writes()) file.emplace(path, whole_layout(), metadata);
    const parameter_layout& own = t.model().layout();
    const auto send_all = [&](const parameter_group& theirs, const parameter_group& mine, int owner) {
      for (const parameter& p : theirs.all())
        for (int which = 0; which < 3; ++which) send(file, p, which, mine, owner);
    };
    send_all(own.shared, own.shared, 0);
    for (int owner = 0; owner < t.grid().ranks; ++owner) {
      const parameter_layout theirs(t.model().config(), t.grid(), owner);
      if (owner < t.grid().expert_parallel) send_all(theirs.expert, own.expert, owner);
      send_all(theirs.owned, own.owned, owner);
    }
    if (writes()) file->commit();
  }

 private:
  state_mover(Trainer& trainer, const pl::reservation& through)
      : trainer_(&trainer),
        pinned_(trainer.backend().pinned(), static_cast<index_t>(through.pinned_bytes / sizeof(float)),
                pl::tag::other),
        arrived_(trainer.backend().device(), static_cast<index_t>(through.device_bytes / sizeof(float)),
                 pl::tag::other) {}
  bool writes() const { return trainer_->world().rank() == 0; }
  // The rank that has the place among those that hold a group; of experts and owned parameters, those of
  // `owner`.
  int rank_of(group_kind kind, int owner, int place) const {
    return kind == group_kind::shared   ? place
           : kind == group_kind::expert ? place * trainer_->grid().expert_parallel + owner
                                        : owner;
  }
  std::vector<tensor_layout> whole_layout() const {
    const parameter_layout whole = parameter_layout::whole(trainer_->model().config());
    std::vector<tensor_layout> all;
    for (const char* prefix : state_prefixes)
      for (const parameter_group* group : whole.groups())
        for (const parameter& p : group->all())
          all.push_back({prefix + p.name, storage_type::f32, p.shape()});
    return all;
  }

  void read(const safetensors_reader& file, const std::string& name, const parameter_group& group,
            const parameter& p, int which) {
    auto& t = *trainer_;
    const auto shape = p.shape();
    const pl::drain guard(t.backend(), t.stream()); // the commands refer to what is above
    for (index_t first = 0; first < p.elements(); first += piece) {
      const index_t n = std::min(piece, p.elements() - first);
      const auto staged = pinned_.all().sub(0, n);
      t.backend().host_task(
          t.stream(),
          [&file, &name, &shape, at = p.first_element() + first](pl::view<float, pl::host_space> out) {
            file.read_part(name, shape, at, {out.p, static_cast<std::size_t>(out.n)});
          },
          pl::out(staged));
      t.optimizer().put(t.stream(), group, p, which, first, staged);
    }
    t.backend().wait(t.backend().record(t.stream()));
  }

  // One field of one parameter of `owner`'s from the ranks that have it to rank 0 and into the file. Every
  // rank calls it, for the exchange; `own` is its own group of that kind.
  void send(std::optional<safetensors_writer>& file, const parameter& p, int which,
            const parameter_group& own, int owner) {
    auto& t = *trainer_;
    const std::string name = state_prefixes[static_cast<std::size_t>(which)] + p.name;
    const pl::drain guard(t.backend(), t.stream());
    for (index_t done = 0; done < p.elements(); done += piece)
      t.optimizer().for_each_place(own, p.offset + done, std::min(piece, p.elements() - done),
                                   [&](int place, index_t first, index_t n) {
                                     send(file, name, p, which, own, rank_of(own.kind(), owner, place),
                                          first - p.offset, n);
                                   });
    t.backend().wait(t.backend().record(t.stream()));
  }
  // Elements [first, first + n) of it, which are rank `from`'s.
  void send(std::optional<safetensors_writer>& file, const std::string& name, const parameter& p, int which,
            const parameter_group& own, int from, index_t first, index_t n) {
    auto& t = *trainer_;
    const bool mine = t.world().rank() == from;
    if (from != 0) {
      pl::view<float> part;
      std::vector<pl::send_op> sends;
      std::vector<pl::receive_op> receives;
      if (mine) {
        part = t.optimizer().to_send(t.stream(), own, p, which, first, n, pinned_.all(), arrived_.all());
        sends.push_back(pl::send_to(0, part));
      }
      if (writes()) {
        part = arrived_.all().sub(0, n);
        receives.push_back(pl::receive_from(from, part));
      }
      t.world().exchange(t.stream(), sends, receives, "state to be saved");
    }
    if (!writes()) return;
    const auto staged = pinned_.all().sub(0, n);
    if (mine)
      t.optimizer().get(t.stream(), own, p, which, first, staged);
    else
      t.backend().copy(t.stream(), pl::in(pl::view<const float>(arrived_.all().sub(0, n))), pl::out(staged));
    t.backend().host_task(
        t.stream(),
        [&to = *file, &name, at = p.first_element() + first](pl::view<const float, pl::host_space> in) {
          to.write(name, at, std::span<const float>(in.p, static_cast<std::size_t>(in.n)));
        },
        pl::in(pl::view<const float, pl::host_space>(staged)));
  }

  Trainer* trainer_;
  pl::pinned_buffer<float, typename Trainer::backend_type> pinned_;
  pl::device_buffer<float, typename Trainer::backend_type> arrived_;
};

} // namespace moe
