// SPDX-License-Identifier: Apache-2.0
// expect: plateau: kernels and products of this backend cannot reach the memory space of this view: copy to device memory first, or specialise plateau::accessible_from for the backend
// control: the view is of device memory
#include <plateau/kernel.hpp>

namespace pl = plateau;

struct machine;

struct clear {
  template <class Space> void operator()(pl::index_t i, pl::view<float, Space> v) const { v[i] = 0; }
};

template <class... Args> void launch(Args...) { pl::check_kernel<machine, pl::elements, clear, Args...>(); }

#ifdef PLATEAU_FAIL_TEST_CONTROL
void issue(pl::view<float, pl::device_space> v) { launch(pl::out(v)); }
#else
void issue(pl::view<float, pl::host_space> v) { launch(pl::out(v)); }
#endif
