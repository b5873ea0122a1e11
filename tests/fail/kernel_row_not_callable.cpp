// SPDX-License-Identifier: Apache-2.0
// expect: plateau kernel: not callable as kernel(team, row, args...) const
// control: a row kernel takes the team first
#include <plateau/kernel.hpp>

namespace pl = plateau;

struct machine;

struct clear {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  template <class Team> void operator()(Team& team, pl::index_t row, pl::tile<float> x) const {
    team.for_each(x.cols, [&](pl::index_t j) { x(row, j) = 0; });
  }
#else
  void operator()(pl::index_t row, pl::tile<float> x) const { x(row, 0) = 0; }
#endif
};

template <class... Args> void launch(Args...) { pl::check_kernel<machine, pl::rows, clear, Args...>(); }

void issue(pl::tile<float> x) { launch(pl::out(x)); }
