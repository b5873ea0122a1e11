// SPDX-License-Identifier: Apache-2.0
//
// The kernels of an entropy over a split vocabulary: a tile of logits folds into the states of its tokens,
// states of the same tokens are merged, and become entropies when all of the vocabulary has been seen.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/entropy_state.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

// Over rows{tokens of the tile}: states (+)= the tile.
struct fold_entropies {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const float> logits,           // (tokens, columns)
                             view<entropy_state> states) const { // (tokens), updated
    const float* z = logits.row(row);
    const index_t n = logits.cols;
    // A NaN is passed over by the maximum, and shows in the sum.
    const float m = team.reduce(n, lowest<float>(), maximum{}, [=](index_t c) { return z[c]; });
    const float s = team.reduce(n, 0.0f, plus{}, [=](index_t c) { return exp(z[c] - m); });
    const float a =
        team.reduce(n, 0.0f, plus{}, [=](index_t c) { return entropy_state::term(exp(z[c] - m), m, z[c]); });
    team.once([=] {
      online_lse lse;
      lse.m = m;
      lse.s = s;
      states[row] = merge(states[row], entropy_state::of(lse, a));
    });
  }
};

// Over elements{tokens}: states += what other ranks have seen of them.
struct merge_entropies {
  PLATEAU_HD void operator()(index_t i, view<const entropy_state> from, view<entropy_state> to) const {
    to[i] = merge(to[i], from[i]);
  }
};

// Over elements{tokens}. Arrays that nobody wants are empty.
struct write_entropies {
  PLATEAU_HD void operator()(index_t i, view<const entropy_state> states, view<float> entropies,
                             view<float> lses) const {
    if (entropies.n != 0) entropies[i] = states[i].entropy();
    if (lses.n != 0) lses[i] = states[i].lse().value();
  }
};

} // namespace plateau::inline v0
