// SPDX-License-Identifier: Apache-2.0
//
// The state of AdamW: one exact slab a field, in pinned host memory, allocated once. Tensors follow one
// another in each slab, whatever the buckets, so that it can be saved and loaded as it lies there, and goes
// on to the bit with other buckets.
#pragma once

#include <plateau/config.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/staging/bucket_plan.hpp>
#include <plateau/tag.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace plateau::inline v0::detail::adamw {

struct zero_host {
  void operator()(view<float, host_space> v) const {
    if (v.n != 0) std::memset(v.p, 0, v.bytes());
  }
};

struct convert_host {
  template <class T, class U> void operator()(view<const T, host_space> from, view<U, host_space> to) const {
    for (index_t i = 0; i < to.n; ++i) to[i] = narrow<U>(widen(from[i]));
  }
};

template <class Backend, class MasterSpace> struct state {
  static constexpr bool master_on_host = std::is_same_v<MasterSpace, host_space>;
  using master_memory =
      std::conditional_t<master_on_host, typename Backend::host_memory, typename Backend::device_memory>;

  buffer<float, master_memory> master;
  pinned_buffer<float, Backend> first_moment, second_moment;
  device_buffer<std::int64_t, Backend> steps; // (tensors)
  device_buffer<float, Backend> norm;         // (1): of the last step's gradients

  state(Backend& backend, index_t elements, index_t tensors)
      : master(master_resource(backend), elements, tag::optimizer),
        first_moment(backend.pinned(), elements, tag::optimizer),
        second_moment(backend.pinned(), elements, tag::optimizer),
        steps(backend.device(), tensors, tag::optimizer), norm(backend.device(), 1, tag::optimizer) {}

  // Everything 0. Only enqueues.
  void clear(Backend& backend, typename Backend::stream& s) {
    if constexpr (master_on_host)
      backend.host_task(s, zero_host{}, out(master.all()));
    else
      backend.launch(s, elements{master.size()}, fill<float>{0}, out(master.all()));
    backend.host_task(s, zero_host{}, out(first_moment.all()));
    backend.host_task(s, zero_host{}, out(second_moment.all()));
    backend.launch(s, elements{steps.size()}, fill<std::int64_t>{0}, out(steps.all()));
    backend.launch(s, elements{1}, fill<float>{0}, out(norm.all()));
  }

 private:
  static auto& master_resource(Backend& backend) {
    if constexpr (master_on_host)
      return backend.pinned();
    else
      return backend.device();
  }
};

} // namespace plateau::inline v0::detail::adamw
