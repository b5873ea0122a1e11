// SPDX-License-Identifier: Apache-2.0
//
// A row kernel that asks its team for everything: reductions of a float and of a structure without a plain
// constructor, loops, roots and a single member. How large the team is, is a parameter.
#pragma once

#include <plateau/config.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <limits>

namespace team_kernels {

using plateau::index_t;

struct running {
  float largest = std::numeric_limits<float>::lowest();
  double sum = 0;
  std::int64_t count = 0;
};
struct join_running {
  PLATEAU_HD running operator()(const running& a, const running& b) const {
    running joined;
    joined.largest = a.largest < b.largest ? b.largest : a.largest;
    joined.sum = a.sum + b.sum;
    joined.count = a.count + b.count;
    return joined;
  }
};

// sums[row] and largest[row] of x; y = |x| - sum, where the sum is that of the floats in the team's order.
template <int Threads> struct every_member {
  static constexpr int team_threads = Threads;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, plateau::tile<const float> x, plateau::tile<float> y,
                             plateau::view<float> sums, plateau::view<running> all) const {
    const float* from = x.row(row);
    float* to = y.row(row);
    const float sum = team.reduce(x.cols, 0.0F, plateau::plus{}, [=](index_t i) { return from[i]; });
    const running joined = team.reduce(x.cols, running{}, join_running{}, [=](index_t i) {
      running one;
      one.largest = from[i];
      one.sum = from[i];
      one.count = 1;
      return one;
    });
    team.for_each_sqrt(
        x.cols, [=](index_t i) { return from[i] * from[i]; }, [=](index_t i, float root) { to[i] = root; });
    team.for_each(x.cols, [=](index_t i) { to[i] -= sum; });
    team.once([=] {
      sums[row] = sum;
      all[row] = joined;
    });
  }
};

} // namespace team_kernels
