// SPDX-License-Identifier: Apache-2.0
//
// AdamW (Loshchilov & Hutter 2019) as everyone has it: fp32 master weights and both moments of every
// parameter of the rank live on the device, so that the peak grows with the parameters. This is the baseline.
// All of it is allocated at construction: state that first appears in the first update is the peak that
// nobody watches any more.
#pragma once

#include "kernels/optimizer.hpp"
#include "model_config.hpp"
#include "parameters.hpp"

#include <plateau/access.hpp>
#include <plateau/collectives.hpp>
#include <plateau/exchange.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

namespace moe {

namespace pl = plateau;

struct adamw_settings {
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  float weight_decay = 0.1F; // of matrices; gains do not decay
  float clip = 1;            // largest global gradient norm; 0: none
};

template <class Backend, class Communicator, class T> class optimizer_on_device {
  using stream = typename Backend::stream;
  static constexpr bool separate_master = !std::is_same_v<T, float>;
  static constexpr index_t norm_block = 65536;

 public:
  using weights_type = tensor_set<Backend, T>;
  using gradients_type = resident_gradients<Backend>;

  // Nothing is promised: it grows with the parameters.
  static std::optional<pl::reservation> promised(const model_config&, const rank_grid&) {
    return std::nullopt;
  }

  // `world`: all ranks; `group`: the expert group; `replicas`: the ranks that hold the same experts. All must
  // outlive it.
  optimizer_on_device(Backend& backend, Communicator& world, Communicator& group, Communicator& replicas,
                      const parameter_layout& layout, const weights_type& weights, adamw_settings settings)
      : backend_(&backend), world_(&world), group_(&group), replicas_(&replicas), layout_(&layout),
        weights_(&weights), settings_(settings), shared_(backend, layout.shared.elements()),
        expert_(backend, layout.expert.elements()),
        squares_(backend.device(), squares_count(), pl::tag::optimizer),
        control_(backend.device(), 2, pl::tag::optimizer), norm_(backend.device(), 1, pl::tag::optimizer),
        scratch_(backend.device(), static_cast<index_t>(scratch_bytes(world, replicas)), pl::tag::optimizer) {
  }

  // Zero moments; masters as they are.
  void reset(stream& s) {
    for (state* each : {&shared_, &expert_})
      for (const auto& moment : {each->first.all(), each->second.all()})
        backend_->launch(s, pl::elements{moment.n}, pl::fill<float>{0}, pl::out(moment));
  }

  // Sums the gradients over ranks, clips, and updates. `step` counts from 1.
  void update(stream& s, const gradients_type& gradients, double learning_rate, std::int64_t step) {
    pl::all_reduce(*backend_, *world_, s, pl::inout(gradients.shared()), scratch_.all());
    pl::all_reduce(*backend_, *replicas_, s, pl::inout(gradients.expert()), scratch_.all());
    measure(s, gradients);
    adamw kernel;
    kernel.beta1 = settings_.beta1;
    kernel.beta2 = settings_.beta2;
    kernel.epsilon = settings_.epsilon;
    kernel.learning_rate = static_cast<float>(learning_rate);
    kernel.correction1 = correction(settings_.beta1, step);
    kernel.correction2 = correction(settings_.beta2, step);
    for (const parameter_group* group : layout_->groups())
      for (const parameter& p : group->all()) {
        kernel.weight_decay = p.vector ? 0 : settings_.weight_decay;
        const auto gradient = pl::in(gradients.of(*group, p)), control = pl::in(control_.all());
        const auto master = pl::inout(this->master(*group, p));
        const auto first = pl::inout(moment(*group, p, 1)), second = pl::inout(moment(*group, p, 2));
        if constexpr (separate_master)
          backend_->launch(s, pl::elements{p.elements()}, kernel, gradient, control, master, first, second,
                           pl::inout(weights_->of(*group, p)));
        else
          backend_->launch(s, pl::elements{p.elements()}, kernel, gradient, control, master, first, second);
      }
  }

  // Rounds the masters to the compute type, after they were set.
  void publish(stream& s) {
    if constexpr (separate_master)
      for (const parameter_group* group : layout_->groups())
        for (const parameter& p : group->all())
          backend_->launch(s, pl::elements{p.elements()}, pl::convert{}, pl::in(master(*group, p)),
                           pl::out(weights_->of(*group, p)));
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

 private:
  struct state {
    pl::device_buffer<float, Backend> master, first, second;
    state(Backend& backend, index_t n)
        : master(backend.device(), separate_master ? n : 0, pl::tag::optimizer),
          first(backend.device(), n, pl::tag::optimizer), second(backend.device(), n, pl::tag::optimizer) {}
  };
  const state& of(const parameter_group& group) const {
    return group.kind() == group_kind::shared ? shared_ : expert_;
  }

  static index_t blocks(index_t n) { return (n + norm_block - 1) / norm_block; }
  index_t shared_blocks() const { return blocks(layout_->shared.elements()); }
  index_t expert_blocks() const { return blocks(layout_->expert.elements()); }
  index_t squares_count() const { return shared_blocks() + group_->size() * expert_blocks(); }

  // Gradients are summed over all ranks and over those with the same experts; a smaller group may need more,
  // since pieces are whole rows.
  static std::size_t scratch_bytes(const Communicator& world, const Communicator& replicas) {
    return std::max(pl::reduce_scratch_bytes<float>(world.size()),
                    pl::reduce_scratch_bytes<float>(replicas.size()));
  }

  // 1 - beta^step, in double; of the beta that the kernel uses.
  static float correction(float beta, std::int64_t step) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
  }

  // The global norm: shared gradients count once, experts' partial sums come from every rank of the group,
  // and all ranks add the same numbers in the same order.
  void measure(stream& s, const gradients_type& gradients) {
    const index_t own = expert_blocks();
    const auto shared = squares_.all().sub(0, shared_blocks());
    const auto experts = squares_.all().sub(shared_blocks(), group_->size() * own);
    const auto mine = experts.sub(group_->rank() * own, own);
    const sum_of_squares squares{norm_block};
    backend_->launch(s, pl::rows{shared.n}, squares, pl::in(gradients.shared()), pl::out(shared));
    backend_->launch(s, pl::rows{own}, squares, pl::in(gradients.expert()), pl::out(mine));
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int peer = 0; peer < group_->size(); ++peer)
      if (peer != group_->rank()) {
        sends.push_back(pl::send_to(peer, mine));
        receives.push_back(pl::receive_from(peer, experts.sub(peer * own, own)));
      }
    group_->exchange(s, sends, receives, "gradient norms");
    backend_->launch(s, pl::rows{1}, clip_control{settings_.clip}, pl::in(squares_.all()),
                     pl::out(control_.all()), pl::out(norm_.all()));
  }

  Backend* backend_;
  Communicator *world_, *group_, *replicas_;
  const parameter_layout* layout_;
  const weights_type* weights_;
  adamw_settings settings_;
  state shared_, expert_;
  pl::device_buffer<double, Backend>
      squares_; // partial sums: shared, then the experts' of each rank of the group
  pl::device_buffer<float, Backend> control_, norm_;
  pl::device_buffer<unsigned char, Backend> scratch_;
};

} // namespace moe
