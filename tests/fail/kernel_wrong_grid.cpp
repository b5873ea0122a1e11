// SPDX-License-Identifier: Apache-2.0
// expect: plateau kernel: the grid is elements{n} or rows{n}
// control: elements
#include <plateau/kernel.hpp>

namespace pl = plateau;

struct machine;

struct clear {
  void operator()(pl::index_t i, pl::view<int> v) const { v[i] = 0; }
};

template <class Grid, class... Args> void launch(Grid, Args...) {
  pl::check_kernel<machine, Grid, clear, Args...>();
}

void issue(pl::view<int> v) {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  launch(pl::elements{v.size()}, pl::out(v));
#else
  launch(v.size(), pl::out(v));
#endif
}
