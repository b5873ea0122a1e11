// SPDX-License-Identifier: Apache-2.0
//
// AdamW whose state lies in host memory and passes through a few slots: Plateau's sharded AdamW on the
// model's parameters. With --zero1 each rank keeps its shard of what several ranks hold, else all of it. The
// device holds slots of buckets, or pieces of gradients on their way to be summed, and a control block.
#pragma once

#include "adamw_settings.hpp"
#include "flattened_gradients.hpp"
#include "model_config.hpp"
#include "parameter_layout.hpp"
#include "parameters.hpp"

#include <plateau/access.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/staging/sharded_adamw.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace moe {

template <class Backend, class Communicator, class T> class flattened_optimizer {
  using stream = typename Backend::stream;
  using adamw_type = pl::sharded_adamw<Backend, Communicator, T>;
  using pinned = pl::view<float, pl::host_space>;

 public:
  using weights_type = tensor_set<Backend, T>;
  using gradients_type = flattened_gradients<Backend>;

  static bool flattens(const model_config&) { return true; }
  // What a rank's holds all the time, exactly.
  static pl::reservation held_by(const parameter_layout& layout, const model_config& c, const rank_grid& g,
                                 int rank) {
    const std::array<int, 3> places{rank, rank / g.expert_parallel, 0};
    return exactly(adamw_type::state_of(shape_of(layout, g.ranks, g.ranks / g.expert_parallel, c),
                                        sizes(layout, g.ranks, g.ranks / g.expert_parallel), places));
  }
  // What it needs of a workspace during an update.
  static pl::reservation reserve_for(const parameter_layout& layout, const model_config& c,
                                     const rank_grid& g) {
    return pl::reserve(adamw_type::working_set_of(shape_of(layout, g.ranks, g.ranks / g.expert_parallel, c),
                                                  sizes(layout, g.ranks, g.ranks / g.expert_parallel),
                                                  g.ranks));
  }

  // `world`: all ranks; `replicas`: those that hold the same experts; `alone`: this rank. All must outlive
  // it, and `space`, which must have room whenever a function is called that is given a stream. Not a word
  // passes between ranks.
  flattened_optimizer(Backend& backend, Communicator& world, Communicator& replicas, Communicator& alone,
                      pl::workspace<Backend>& space, const parameter_layout& layout,
                      const weights_type& weights, adamw_settings settings, const model_config& c)
      : backend_(&backend), world_(&world), replicas_(&replicas), layout_(&layout), weights_(&weights),
        settings_(settings),
        shape_(shape_of(layout, world.size(), replicas.size(), c)), tensors_{tensors_of(layout.shared),
                                                                             tensors_of(layout.expert),
                                                                             tensors_of(layout.owned)},
        active_(elements_of(layout.expert)), space_(&space),
        lent_bytes_(
            adamw_type::working_set_of(shape_, sizes(layout, world.size(), replicas.size()), world.size())
                .device_bytes()),
        adamw_(backend, world,
               std::array<typename adamw_type::list, 3>{
                   {{&world, tensors_[0]}, {&replicas, tensors_[1]}, {&alone, tensors_[2]}}},
               shape_, *space_, pl::voting::left_to_caller) {
    active_.set_all(false);
  }

  // The most that it holds.
  pl::reservation promise() const {
    const auto all = sizes(*layout_, world_->size(), replicas_->size());
    const std::array<int, 3> places{world_->rank(), replicas_->rank(), 0};
    return pl::together(adamw_type::working_set_of(shape_, all, world_->size()),
                        exactly(adamw_type::state_of(shape_, all, places)));
  }

  // Zero moments; masters as they are.
  void reset(stream& s) {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      for (const pinned& moment : {adamw_.first_moment(i), adamw_.second_moment(i)})
        backend_->host_task(s, zeros{}, pl::out(moment));
  }

  // A local expert of a layer has had rows in this step: its gradient is not zero, as far as this rank knows.
  void had_rows(index_t layer, index_t expert) {
    const layer_parameters& p = layout_->layers[static_cast<std::size_t>(layer)];
    const auto e = static_cast<std::size_t>(expert);
    for (const int tensor : {p.gate[e], p.up[e], p.down[e]}) active_.set(tensor, true);
  }

  // Sums the gradients over ranks, clips, and updates. `step` counts from 1. One exchange of integers between
  // the ranks that hold the same experts: which of these have had rows.
  void update(stream& s, gradients_type& gradients, double learning_rate, std::int64_t step) {
    gradients.finish(s);
    active_.unite(*replicas_, "experts with rows");
    // Where a step is skipped the corrections go on, as the schedule does.
    adamw_.set_steps(s, step - 1);
    const std::array<pl::adamw_group, 1> groups{settings_.group(learning_rate)};
    std::array<typename adamw_type::arguments, 3> lists;
    for (const group_kind kind : all_group_kinds)
      lists[static_cast<std::size_t>(kind)] = {gradients.home(kind), weights_->of(kind),
                                               kind == group_kind::expert ? &active_ : nullptr};
    adamw_.step(s, lists, {groups, static_cast<double>(settings_.clip), {}});
    active_.set_all(false);
  }

  // (1): the norm of the last update's gradients before clipping, the same on every rank.
  pl::view<float> gradient_norm() const { return adamw_.gradient_norm(); }

  // Elements that `fill(stream, first, to)` can be asked for at a time.
  index_t piece_elements() const {
    return std::min(shape_.update.bucket_elements, static_cast<index_t>(lent_bytes_ / 512 * 128));
  }
  // The fp32 values of a parameter from its beginning, and with them the weights: fill(stream, first, to)
  // writes elements of it from `first` to device memory, piece by piece.
  template <class F> void set_values(stream& s, const parameter_group& group, const parameter& p, F fill) {
    const auto open = open_piece();
    const pl::view<float> piece = open.piece;
    for (index_t first = 0; first < p.elements(); first += piece.n) {
      const auto part = piece.sub(0, std::min(piece.n, p.elements() - first));
      fill(s, first, part);
      backend_->launch(s, pl::elements{part.n}, pl::convert{}, pl::in(pl::view<const float>(part)),
                       pl::out(weights_->of(group, p).sub(first, part.n)));
      const own_part own = own_of(group, p, 0, first, part.n);
      if (own.state.n != 0)
        backend_->copy(s, pl::in(pl::view<const float>(part.sub(own.before, own.state.n))),
                       pl::out(own.state));
    }
  }

  // A field of a parameter (0: values, 1 and 2: moments) from its element `first` on, from pinned memory.
  void put(stream& s, const parameter_group& group, const parameter& p, int which, index_t first,
           pinned from) {
    const own_part own = own_of(group, p, which, first, from.n);
    if (own.state.n != 0)
      backend_->host_task(s, copy_floats{},
                          pl::in(pl::view<const float, pl::host_space>(from.sub(own.before, own.state.n))),
                          pl::out(own.state));
    if (which != 0) return;
    const auto open = open_piece();
    for (index_t done = 0; done < from.n; done += open.piece.n) {
      const auto part = open.piece.sub(0, std::min(open.piece.n, from.n - done));
      backend_->copy(s, pl::in(pl::view<const float, pl::host_space>(from.sub(done, part.n))), pl::out(part));
      backend_->launch(s, pl::elements{part.n}, pl::convert{}, pl::in(pl::view<const float>(part)),
                       pl::out(weights_->of(group, p).sub(first + done, part.n)));
    }
  }
  // The same to pinned memory, where this rank has all of it.
  void get(stream& s, const parameter_group& group, const parameter& p, int which, index_t first, pinned to) {
    backend_->host_task(
        s, copy_floats{},
        pl::in(pl::view<const float, pl::host_space>(own_of(group, p, which, first, to.n).state)),
        pl::out(to));
  }
  // The same on the device, to be sent, by way of these two.
  static constexpr bool copies_to_send() { return true; }
  pl::view<float> to_send(stream& s, const parameter_group& group, const parameter& p, int which,
                          index_t first, index_t n, pinned host, pl::view<float> device) {
    get(s, group, p, which, first, host.sub(0, n));
    backend_->copy(s, pl::in(pl::view<const float, pl::host_space>(host.sub(0, n))),
                   pl::out(device.sub(0, n)));
    return device.sub(0, n);
  }
  // f(place, first, n) for each part of elements [first, first + n) of a group that one rank has: its place
  // among those that hold the group.
  template <class F> void for_each_place(const parameter_group& group, index_t first, index_t n, F f) const {
    if (group.kind() == group_kind::owned) return f(0, first, n); // another rank's has another length
    const pl::shard_plan& plan = adamw_.shards(static_cast<std::size_t>(group.kind()));
    for (int r = 0; r < plan.ranks(); ++r) {
      const pl::element_range shard = plan.of_rank(r);
      const index_t from = std::max(first, shard.first),
                    to = std::min(first + n, shard.first + shard.elements);
      if (from < to) f(r, from, to - from);
    }
  }

 private:
  struct zeros {
    void operator()(pinned to) const {
      if (to.n != 0) std::memset(to.p, 0, to.bytes());
    }
  };
  struct copy_floats {
    void operator()(pl::view<const float, pl::host_space> from, pinned to) const {
      if (to.n != 0) std::memcpy(to.p, from.p, to.bytes());
    }
  };
  // What this rank's state has of a range: that state, and where it begins in the range.
  struct own_part {
    pinned state;
    index_t before = 0;
  };
  own_part own_of(const parameter_group& group, const parameter& p, int which, index_t first,
                  index_t n) const {
    const auto i = static_cast<std::size_t>(group.kind());
    const pl::element_range shard = adamw_.shard(i);
    const index_t begin = p.offset + first, from = std::max(begin, shard.first),
                  to = std::min(begin + n, shard.first + shard.elements);
    if (from >= to) return {};
    const pinned field = which == 0   ? adamw_.master(i)
                         : which == 1 ? adamw_.first_moment(i)
                                      : adamw_.second_moment(i);
    return {field.sub(from - shard.first, to - from), from - begin};
  }
  // A piece of the workspace, between steps.
  struct open_phase {
    typename pl::workspace<Backend>::phase phase;
    pl::view<float> piece;

    open_phase(pl::workspace<Backend>& space, const pl::working_set& set, index_t n)
        : phase(space.open(set)), piece(phase.template device<float>(n)) {}
  };
  open_phase open_piece() {
    pl::working_set set(pl::tag::optimizer);
    set.device<float>("values of a parameter", piece_elements());
    return {*space_, set, piece_elements()};
  }

  static std::vector<pl::adamw_tensor> tensors_of(const parameter_group& group) {
    std::vector<pl::adamw_tensor> all;
    for (const parameter& p : group.all()) all.push_back({p.elements(), 0, !p.vector, true});
    return all;
  }
  static std::vector<index_t> elements_of(const parameter_group& group) {
    std::vector<index_t> all;
    for (const parameter& p : group.all()) all.push_back(p.elements());
    return all;
  }
  // The same buckets on all ranks: of the longest shards.
  static pl::sharded_adamw_shape shape_of(const parameter_layout& layout, int ranks, int replicas,
                                          const model_config& c) {
    const optimizer_settings& o = c.optimizer;
    const auto longest = [&](index_t n, int of) {
      return pl::shard_plan::even(n, o.zero1 ? of : 1, adamw_type::grain).longest();
    };
    const index_t owned = layout.owned_elements.empty()
                              ? 0
                              : *std::max_element(layout.owned_elements.begin(), layout.owned_elements.end());
    const index_t state =
        longest(layout.shared.elements(), ranks) + longest(layout.expert.elements(), replicas) + owned;
    pl::staging_shape{1, o.slots}.check();
    std::size_t bytes = o.bucket_bytes;
    if (bytes == 0)
      bytes =
          std::max(adamw_type::streamed_bytes_per_element,
                   pl::default_bucket_bytes(
                       static_cast<std::size_t>(state) * adamw_type::streamed_bytes_per_element, o.slots));
    pl::sharded_adamw_shape shape;
    shape.update.bucket_elements = pl::bucket_elements_for(bytes, adamw_type::streamed_bytes_per_element);
    shape.update.slots = o.slots;
    shape.update.where = o.where;
    shape.state = o.zero1 ? pl::adamw_state_of::own_shard : pl::adamw_state_of::all;
    return shape;
  }
  static std::array<pl::sharded_list, 3> sizes(const parameter_layout& layout, int ranks, int replicas) {
    const auto size = [](const parameter_group& group, int of) {
      return pl::sharded_list{of, group.elements(), static_cast<index_t>(group.all().size())};
    };
    return {size(layout.shared, ranks), size(layout.expert, replicas), size(layout.owned, 1)};
  }
  // Each line is a buffer of its own, which is not rounded up.
  static pl::reservation exactly(const pl::working_set& set) {
    pl::reservation sum;
    for (const pl::memory_line& line : set)
      (line.kind == pl::memory_kind::device ? sum.device_bytes : sum.pinned_bytes) += line.bytes;
    return sum;
  }

  Backend* backend_;
  Communicator *world_, *replicas_;
  const parameter_layout* layout_;
  const weights_type* weights_;
  adamw_settings settings_;
  pl::sharded_adamw_shape shape_;
  std::array<std::vector<pl::adamw_tensor>, 3> tensors_; // by group_kind
  pl::tensor_activity active_;                           // of the experts
  pl::workspace<Backend>* space_;
  std::size_t lent_bytes_; // of it, to an update
  adamw_type adamw_;
};

} // namespace moe
