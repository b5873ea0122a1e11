// SPDX-License-Identifier: Apache-2.0
// expect: plateau kernel: not callable as kernel(index, args...) const; in(v) arrives as a view of const
// control: the kernel takes a view of const for in(v)
#include <plateau/kernel.hpp>

namespace pl = plateau;

struct machine;

struct scale {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  using input = pl::view<const float>;
#else
  using input = pl::view<float>;
#endif
  void operator()(pl::index_t i, input x, pl::view<float> y) const { y[i] = 2 * x[i]; }
};

template <class... Args> void launch(Args...) { pl::check_kernel<machine, pl::elements, scale, Args...>(); }

void issue(pl::view<float> x, pl::view<float> y) { launch(pl::in(x), pl::out(y)); }
