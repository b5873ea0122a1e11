// SPDX-License-Identifier: Apache-2.0
//
// Row kernels that ask their team for everything: reductions of a float and of a structure without a plain
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

// sums (rows, 3) of all floats of the row, of all but one and of all but two.
template <int Threads> struct reductions {
  static constexpr int team_threads = Threads;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, plateau::tile<const float> x,
                             plateau::tile<float> sums) const {
    const float* from = x.row(row);
    float* sum = sums.row(row);
    const index_t n = x.cols;
    for (index_t left_out = 0; left_out < 3; ++left_out) {
      const float of_these = team.reduce(n < left_out ? 0 : n - left_out, 0.0F, plateau::plus{},
                                         [=](index_t i) { return from[i]; });
      team.once([=] { sum[left_out] = of_these; });
    }
  }
};

// all[row]: of the structures.
template <int Threads> struct joined_structures {
  static constexpr int team_threads = Threads;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, plateau::tile<const float> x,
                             plateau::view<running> all) const {
    const float* from = x.row(row);
    const running joined = team.reduce(x.cols, running{}, join_running{}, [=](index_t i) {
      running one;
      one.largest = from[i];
      one.sum = from[i];
      one.count = 1;
      return one;
    });
    team.once([=] { all[row] = joined; });
  }
};

// roots = |x|; mirrored = |x| from the back, plus marks[row], which becomes 3. What one member writes another
// one reads right after it: a barrier that is missing shows.
template <int Threads> struct meetings {
  static constexpr int team_threads = Threads;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, plateau::tile<const float> x,
                             plateau::tile<float> roots, plateau::tile<float> mirrored,
                             plateau::view<float> marks) const {
    const float* from = x.row(row);
    float *root_of = roots.row(row), *to = mirrored.row(row);
    const index_t n = x.cols;
    team.for_each_sqrt(
        n, [=](index_t i) { return from[i] * from[i]; }, [=](index_t i, float root) { root_of[i] = root; });
    team.for_each(n, [=](index_t i) { to[i] = root_of[n - 1 - i]; });
    team.once([=] { marks[row] = 3; });
    team.for_each(n, [=](index_t i) { to[i] += marks[row]; });
  }
};

} // namespace team_kernels
