// SPDX-License-Identifier: Apache-2.0
//
// AdamW as everyone has it: fp32 master weights and both moments of every parameter of the rank live on the
// device, so that the peak grows with the parameters. This is the baseline. All of it is allocated at
// construction: state that first appears in the first update is the peak that nobody watches any more.
#pragma once

#include "adamw_settings.hpp"
#include "model_config.hpp"
#include "parameters.hpp"

#include <plateau/access.hpp>
#include <plateau/collectives.hpp>
#include <plateau/kernels.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/resource.hpp>
#include <plateau/staging/adamw_steps.hpp>
#include <plateau/staging/gradient_control.hpp>
#include <plateau/team.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace moe {

template <class Backend, class Communicator, class T> class optimizer_on_device {
  using stream = typename Backend::stream;
  static constexpr bool separate_master = !std::is_same_v<T, float>;

 public:
  using weights_type = tensor_set<Backend, T>;
  using gradients_type = resident_gradients<Backend>;

  // Nothing is promised: it grows with the parameters.
  static std::optional<pl::reservation> promise() { return std::nullopt; }

  static bool flattens(const model_config&) { return false; }
  // What it holds all the time.
  static pl::reservation held_by(const parameter_layout& layout, const model_config&, const rank_grid&, int) {
    std::size_t bytes = sizeof(float); // the norm
    for (const parameter_group* group : layout.groups())
      bytes += static_cast<std::size_t>(group->elements()) * (separate_master ? 3 : 2) * sizeof(float) +
               group->all().size() * (sizeof(std::int64_t) + sizeof(pl::adamw_factors));
    return {bytes, 0};
  }
  // What it needs of a workspace during an update: first scratch of the sums, then the control block.
  static pl::reservation reserve_for(const parameter_layout&, const model_config&, const rank_grid& g) {
    return pl::overlay(sum_set(g.ranks, g.ranks / g.expert_parallel), control_set(g.ranks));
  }

  // `world`: all ranks; `replicas`: the ranks that hold the same experts. All must outlive it, and `space`,
  // which must have room whenever a step is updated.
  optimizer_on_device(Backend& backend, Communicator& world, Communicator& replicas, Communicator&,
                      pl::workspace<Backend>& space, const parameter_layout& layout,
                      const weights_type& weights, adamw_settings settings, const model_config&)
      : backend_(&backend), world_(&world), replicas_(&replicas), layout_(&layout), weights_(&weights),
        settings_(settings), tensors_(tensors_of(layout)), shared_(backend, layout.shared.elements()),
        expert_(backend, layout.expert.elements()), owned_(backend, layout.owned.elements()),
        steps_(backend.device(), static_cast<index_t>(tensors_.size()), pl::tag::optimizer),
        factors_(backend.device(), steps_.size(), pl::tag::optimizer),
        norm_(backend.device(), 1, pl::tag::optimizer), space_(&space), control_(backend, world) {}

  // Zero moments; masters as they are.
  void reset(stream& s) {
    for (state* each : {&shared_, &expert_, &owned_})
      for (const auto& moment : {each->first.all(), each->second.all()})
        backend_->launch(s, pl::elements{moment.n}, pl::fill<float>{0}, pl::out(moment));
  }

  // Every gradient is summed over ranks, also those of experts without rows.
  void had_rows(index_t, index_t) {}

  // Sums the gradients over ranks, clips, and updates. `step` counts from 1.
  void update(stream& s, const gradients_type& gradients, double learning_rate, std::int64_t step) {
    {
      const pl::working_set set = sum_set(world_->size(), replicas_->size());
      auto open = space_->open(set);
      const auto scratch = open.template device<unsigned char>(static_cast<index_t>(set.begin()->bytes));
      pl::all_reduce(*backend_, *world_, s, pl::inout(gradients.shared()), scratch);
      pl::all_reduce(*backend_, *replicas_, s, pl::inout(gradients.expert()), scratch);
    }
    auto open = space_->open(control_set(world_->size()));
    pl::phase_source<Backend> source(open);
    const pl::gradient_control_memory m(source, world_->size());
    measure(s, m, gradients);
    // Where a step is skipped the corrections go on, as the schedule does.
    backend_->launch(s, pl::elements{steps_.size()}, pl::fill<std::int64_t>{step - 1}, pl::out(steps_.all()));
    const std::array<pl::adamw_group, 1> groups{settings_.group(learning_rate)};
    const auto control = pl::in(pl::view<const float>(m.control));
    pl::detail::adamw::count(*backend_, s, std::span<const pl::adamw_tensor>(tensors_), {groups, 0, {}},
                             control.v, steps_.all(), factors_.all());
    index_t tensor = 0;
    for (const parameter_group* group : layout_->groups())
      for (const parameter& p : group->all()) {
        const pl::rows grid{pl::adamw_counted_update::rows_of(p.elements())};
        const auto factors = pl::in(pl::view<const pl::adamw_factors>(factors_.all().sub(tensor++, 1)));
        const auto gradient = pl::in(pl::view<const float>(gradients.of(*group, p)));
        const auto master = pl::inout(this->master(*group, p));
        const auto first = pl::inout(moment(*group, p, 1)), second = pl::inout(moment(*group, p, 2));
        if constexpr (separate_master)
          backend_->launch(s, grid, pl::adamw_counted_update{}, factors, gradient, control, master, first,
                           second, pl::inout(weights_->of(*group, p)));
        else
          backend_->launch(s, grid, pl::adamw_counted_update{}, factors, gradient, control, master, first,
                           second);
      }
  }

  // Rounds the masters to the compute type, after they were set.
  void publish(stream& s) {
    for (const parameter_group* group : layout_->groups())
      for (const parameter& p : group->all()) publish(s, *group, p);
  }

  // The fp32 value of a parameter: the master, or in an fp32 model the weight itself.
  pl::view<float> master(const parameter_group& group, const parameter& p) const {
    if constexpr (separate_master)
      return of(group).master.all().sub(p.offset, p.elements());
    else
      return weights_->of(group, p);
  }
  // The first or second moment of a parameter; `which` is 1 or 2.
  pl::view<float> moment(const parameter_group& group, const parameter& p, int which) const {
    return (which == 1 ? of(group).first : of(group).second).all().sub(p.offset, p.elements());
  }
  // (1): the norm of the last update's gradients before clipping, the same on every rank.
  pl::view<float> gradient_norm() const { return norm_.all(); }

  // The fp32 values of a parameter, and with them the weights: fill(stream, 0, to) writes them.
  template <class F> void set_values(stream& s, const parameter_group& group, const parameter& p, F fill) {
    fill(s, index_t{0}, master(group, p));
    publish(s, group, p);
  }
  // A field of a parameter (0: values, 1 and 2: moments) from its element `first` on, from pinned memory.
  void put(stream& s, const parameter_group& group, const parameter& p, int which, index_t first,
           pl::view<float, pl::host_space> from) {
    backend_->copy(s, pl::in(pl::view<const float, pl::host_space>(from)),
                   pl::out(field(group, p, which).sub(first, from.n)));
    if (which == 0 && first + from.n == p.elements()) publish(s, group, p);
  }
  // The same to pinned memory.
  void get(stream& s, const parameter_group& group, const parameter& p, int which, index_t first,
           pl::view<float, pl::host_space> to) {
    backend_->copy(s, pl::in(pl::view<const float>(field(group, p, which).sub(first, to.n))), pl::out(to));
  }
  // The same on the device, to be sent: no copy is needed.
  static constexpr bool copies_to_send() { return false; }
  pl::view<float> to_send(stream&, const parameter_group& group, const parameter& p, int which, index_t first,
                          index_t n, pl::view<float, pl::host_space>, pl::view<float>) {
    return field(group, p, which).sub(first, n);
  }
  // f(place, first, n) for each part of elements [first, first + n) of a group that one rank has: its place
  // among those that hold the group. All have all; the first of them speaks.
  template <class F> void for_each_place(const parameter_group&, index_t first, index_t n, F f) const {
    f(0, first, n);
  }

 private:
  struct state {
    pl::device_buffer<float, Backend> master, first, second;
    state(Backend& backend, index_t n)
        : master(backend.device(), separate_master ? n : 0, pl::tag::optimizer),
          first(backend.device(), n, pl::tag::optimizer), second(backend.device(), n, pl::tag::optimizer) {}
  };
  const state& of(const parameter_group& group) const {
    return group.kind() == group_kind::shared   ? shared_
           : group.kind() == group_kind::expert ? expert_
                                                : owned_;
  }
  pl::view<float> field(const parameter_group& group, const parameter& p, int which) const {
    return which == 0 ? master(group, p) : moment(group, p, which);
  }
  void publish(stream& s, const parameter_group& group, const parameter& p) {
    if constexpr (separate_master)
      backend_->launch(s, pl::elements{p.elements()}, pl::convert{},
                       pl::in(pl::view<const float>(master(group, p))), pl::out(weights_->of(group, p)));
  }
  static std::vector<pl::adamw_tensor> tensors_of(const parameter_layout& layout) {
    std::vector<pl::adamw_tensor> all;
    for (const parameter_group* group : layout.groups())
      for (const parameter& p : group->all()) all.push_back({p.elements(), 0, !p.vector, true});
    return all;
  }
  static pl::working_set control_set(int ranks) {
    pl::working_set set(pl::tag::optimizer);
    pl::counting_source source(set);
    pl::gradient_control_memory(source, ranks);
    return set;
  }
  // Gradients are summed over all ranks and over those with the same experts; a smaller group may need more,
  // since pieces are whole rows.
  static pl::working_set sum_set(int ranks, int replicas) {
    const std::size_t bytes =
        std::max(pl::reduce_scratch_bytes<float>(ranks), pl::reduce_scratch_bytes<float>(replicas));
    return pl::working_set(pl::tag::optimizer)
        .device<unsigned char>("sums of gradients", static_cast<index_t>(bytes));
  }

  // The global norm: of what several ranks have alike, one of them counts it.
  void measure(stream& s, const pl::gradient_control_memory& m, const gradients_type& gradients) {
    control_.begin(s, m);
    for (const group_kind kind : all_group_kinds) {
      const pl::view<const float> all = gradients.of(kind);
      const bool counts = kind == group_kind::shared   ? world_->rank() == 0
                          : kind == group_kind::expert ? replicas_->rank() == 0
                                                       : true;
      if (all.n != 0) control_.add(s, m, all, 0, all.n, counts);
    }
    control_.finish(s, m, static_cast<double>(settings_.clip), norm_.all());
  }

  Backend* backend_;
  Communicator *world_, *replicas_;
  const parameter_layout* layout_;
  const weights_type* weights_;
  adamw_settings settings_;
  std::vector<pl::adamw_tensor> tensors_; // of all groups
  state shared_, expert_, owned_;
  pl::device_buffer<std::int64_t, Backend> steps_; // (tensors)
  pl::device_buffer<pl::adamw_factors, Backend> factors_;
  pl::device_buffer<float, Backend> norm_;
  pl::workspace<Backend>* space_;
  pl::gradient_control<Backend, Communicator> control_;
};

} // namespace moe
