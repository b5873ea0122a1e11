// SPDX-License-Identifier: Apache-2.0
//
// The step of a streamed AdamW that the processor makes, where its memory is faster than the link: the state
// stays, and only gradients (where they are on the device) and parameters pass through pinned slots.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/kernels.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/staging/adamw_shape.hpp>
#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/host_adamw.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <type_traits>

namespace plateau::inline v0::detail::adamw {

// A tensor's part of a bucket, in stream order. The slot of a parameter holds another bucket's, so that a
// skipped step puts there what the device has already: the rounded master.
struct host_update {
  host_adamw* engine;

  template <class Gradient, class Parameter>
  void operator()(view<const adamw_factors, host_space> factors, view<const float, host_space> control,
                  view<const Gradient, host_space> gradient, view<float, host_space> master,
                  view<float, host_space> first_moment, view<float, host_space> second_moment,
                  view<Parameter, host_space> parameter) const {
    engine->update(factors[0], gradient, control, master, first_moment, second_moment, parameter);
    if (control[1] != 0.0f)
      for (index_t i = 0; i < parameter.n; ++i) parameter[i] = narrow<Parameter>(master[i]);
  }
};

template <class Backend, class Gradient, class Parameter, class GradientSpace> class on_host {
  static constexpr bool gradients_on_host = std::is_same_v<GradientSpace, host_space>;
  using stream = typename Backend::stream;
  using event = typename Backend::event;

  struct memory {
    view<adamw_factors, host_space> factors; // (tensors)
    view<float, host_space> control;         // (2)
    std::array<view<Gradient, host_space>, staging_shape::most_slots> gradients;
    std::array<view<Parameter, host_space>, staging_shape::most_slots> parameters;

    template <class Source>
    memory(Source& from, const adamw_shape& limits, index_t tensors)
        : factors(from.template pinned<adamw_factors>("factors of each tensor", tensors)),
          control(from.template pinned<float>("clip and skip", 2)) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(limits.slots); ++i) {
        if constexpr (!gradients_on_host)
          gradients[i] = from.template pinned<Gradient>("slot, gradients", limits.bucket_elements);
        parameters[i] = from.template pinned<Parameter>("slot, parameters", limits.bucket_elements);
      }
    }
  };

 public:
  static working_set working_set_of(const adamw_shape& limits, index_t tensors) {
    working_set set(tag::optimizer);
    counting_source source(set);
    memory(source, limits, tensors);
    return set;
  }

  on_host(Backend& backend, const adamw_shape& limits)
      : backend_(&backend), shape_(limits), engine_(limits.host_threads),
        in_(backend.make_stream("gradients in")), work_(backend.make_stream("adamw on the host")),
        out_(backend.make_stream("parameters out")) {}

  template <class Progress>
  void run(stream& caller, workspace<Backend>& space, const bucket_plan& plan, view<adamw_factors> factors,
           view<float> control, view<const Gradient, GradientSpace> gradients, view<float, host_space> master,
           view<float, host_space> first_moment, view<float, host_space> second_moment,
           view<Parameter> parameters, const adamw_options& options, Progress& progress) {
    if (plan.buckets() == 0) return;
    auto open = space.open(working_set_of(shape_, factors.n));
    phase_source<Backend> source(open);
    const memory m(source, shape_, factors.n);
    try {
      Backend& be = *backend_;
      for (index_t t = 0; t < factors.n;) { // of those that take no part nobody has written any
        const index_t first = t;
        while (t < factors.n && options.has(t)) ++t;
        const index_t n = t - first;
        if (n != 0)
          be.copy(caller, in(view<const adamw_factors>(factors.sub(first, n))), out(m.factors.sub(first, n)));
        else
          ++t;
      }
      be.copy(caller, in(view<const float>(control)), out(m.control));
      const event begin = be.record(caller);
      be.wait(gradients_on_host ? work_ : in_, begin); // the stages after it wait for the first
      std::array<event, staging_shape::most_slots> updated{}, unused{};
      for (index_t i = 0; i < plan.buckets(); ++i) {
        const bucket b = plan.at(i);
        const auto slot = static_cast<std::size_t>(i % shape_.slots);
        bool any = false;
        for_each_part(plan, b, options, [&](index_t, const tensor_part&) { any = true; });
        if (!any) {
          progress(b);
          continue;
        }
        view<const Gradient, host_space> g;
        if constexpr (gradients_on_host) {
          g = gradients.sub(b.first, b.elements);
        } else {
          // The slot's last gradients have been used when its last update has ended.
          be.wait(in_, updated[slot]);
          for_each_part(plan, b, options, [&](index_t, const tensor_part& p) {
            be.copy(in_, in(gradients.sub(b.first + p.at, p.elements)),
                    out(m.gradients[slot].sub(p.at, p.elements)));
          });
          be.wait(work_, be.record(in_));
          g = m.gradients[slot].sub(0, b.elements);
        }
        be.wait(work_, unused[slot]);
        for_each_part(plan, b, options, [&](index_t t, const tensor_part& p) {
          const auto part = [&](auto v) { return v.sub(b.first + p.at, p.elements); };
          be.host_task(work_, host_update{&engine_},
                       in(view<const adamw_factors, host_space>(m.factors.sub(t, 1))),
                       in(view<const float, host_space>(m.control)), in(g.sub(p.at, p.elements)),
                       inout(part(master)), inout(part(first_moment)), inout(part(second_moment)),
                       out(m.parameters[slot].sub(p.at, p.elements)));
        });
        updated[slot] = be.record(work_);
        be.wait(out_, updated[slot]);
        for_each_part(plan, b, options, [&](index_t, const tensor_part& p) {
          be.copy(out_, in(view<const Parameter, host_space>(m.parameters[slot].sub(p.at, p.elements))),
                  out(parameters.sub(b.first + p.at, p.elements)));
        });
        unused[slot] = be.record(out_);
        progress(b);
      }
      be.wait(caller, be.record(out_));
    } catch (...) {
      for (stream* each : {&caller, &in_, &work_, &out_}) {
        try {
          backend_->wait(backend_->record(*each));
        } catch (...) {
        }
      }
      throw;
    }
  }

 private:
  template <class F>
  static void for_each_part(const bucket_plan& plan, const bucket& b, const adamw_options& options, F f) {
    for (index_t t = b.first_tensor; t < b.last_tensor; ++t) {
      if (!options.has(t)) continue;
      const tensor_part p = plan.part_of(b, t);
      if (p.elements != 0) f(t, p);
    }
  }

  Backend* backend_;
  adamw_shape shape_;
  host_adamw engine_;
  stream in_, work_, out_;
};

} // namespace plateau::inline v0::detail::adamw
