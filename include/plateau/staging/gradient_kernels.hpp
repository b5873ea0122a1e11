// SPDX-License-Identifier: Apache-2.0
//
// The kernels that decide about a step: sums of squares over fixed blocks of a list of gradients, their exact
// sum, and what adamw_update reads of it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/scalar.hpp>
#include <plateau/staging/exact_sum.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cmath>
#include <cstdint>

namespace plateau::inline v0 {

// Over rows of the blocks that [first, first + count) of the list touches: adds the squares of what a block
// has of them to its partial sum. `part` begins at a multiple of the block.
struct block_squares {
  index_t block = 1, first = 0, count = 0; // as they lie in `part`

  index_t rows() const { return count == 0 ? 0 : (first + count - 1) / block - first / block + 1; }

  template <class Team, class Gradient>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const Gradient> part, // (n)
                             view<double> partial) const {                       // (blocks of part), updated
    const index_t number = first / block + row, from = number * block, to = from + block;
    const index_t begin = from < first ? first : from, end = to < first + count ? to : first + count;
    const Gradient* const g = part.p + begin;
    const double sum = team.reduce(end - begin, 0.0, plus{}, [=](index_t i) {
      const double value = static_cast<double>(widen(g[i]));
      return value * value; // of a float: exact
    });
    team.once([=] { partial[number] += sum; });
  }
};

// Over rows{1}: adds the partial sums to the exact one and clears them. Where the list does not count on this
// rank, only whether they are finite is noted.
struct fold_squares {
  bool counts = true;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t, view<double> partial, // updated
                             view<std::int64_t> sum) const {            // (exact_sum::words), updated
    const bool counted = counts;
    team.once([=] {
      for (index_t i = 0; i < partial.n; ++i) {
        if (counted || !is_finite(partial[i])) exact_sum::add(sum.p, partial[i]);
        partial[i] = 0;
      }
      exact_sum::carry(sum.p);
    });
  }
};

// Over rows{1}: control[0] is what gradients are multiplied by, control[1] != 0 skips the step: when the norm
// is not finite. limit <= 0: nothing is clipped.
struct decide_step {
  float limit = 1.0f;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t,
                             view<const std::int64_t> sums, // (ranks, exact_sum::words)
                             view<float> control,           // (2), written
                             view<float> norm) const {      // (1), written
    const float largest = limit;
    team.once([=] {
      std::int64_t total[exact_sum::words] = {};
      for (index_t i = 0; i < sums.n; ++i) total[i % exact_sum::words] += sums[i];
      exact_sum::carry(total);
      const float root = static_cast<float>(::sqrt(exact_sum::value(total)));
      const bool finite = is_finite(root);
      const float factor = largest / (root + 1e-6f);
      norm[0] = root;
      control[0] = finite && largest > 0.0f && factor < 1.0f ? factor : 1.0f;
      control[1] = finite ? 0.0f : 1.0f;
    });
  }
};

} // namespace plateau::inline v0
