// SPDX-License-Identifier: Apache-2.0
// expect: a kernel argument is in(v), out(v), some(v), inout(v), accumulates(v) or a plain value
// control: the view says what is done to it
#include <plateau/kernel.hpp>

namespace pl = plateau;

struct machine;

struct fill {
  void operator()(pl::index_t i, pl::view<float> v, float value) const { v[i] = value; }
};

template <class... Args> void launch(Args...) { pl::check_kernel<machine, pl::elements, fill, Args...>(); }

void issue(pl::view<float> v) {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  launch(pl::out(v), 1.0f);
#else
  launch(v, 1.0f);
#endif
}
