// SPDX-License-Identifier: Apache-2.0
//
// States of fixed blocks of the vocabulary put together. A merge rounds, so the bits of a sum depend on the
// order of its parts, and on a ring that order depends on where one begins and on how many ranks there are.
// Blocks that are each folded by one rank, kept apart while they travel and joined in the order of the
// vocabulary do not.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

// Over elements{tokens}: the blocks of a token, which lie as many tokens apart, become one. What nobody asked
// for is empty on both sides.
struct join_blocks {
  index_t blocks = 1;

  PLATEAU_HD void operator()(index_t i, view<const token_state> from, // (blocks, tokens)
                             view<const float> from_spreads, view<const std::int64_t> from_largest,
                             view<token_state> states, // (tokens), written, as what follows
                             view<float> spreads, view<std::int64_t> largest) const {
    states[i] = from[i];
    if (spreads.n != 0) spreads[i] = from_spreads[i];
    if (largest.n != 0) largest[i] = from_largest[i];
    for (index_t b = 1; b < blocks; ++b) {
      const index_t k = b * states.n + i;
      merge_statistics{}.merge_into(i, from[k], spreads.n == 0 ? 0.0f : from_spreads[k],
                                    largest.n == 0 ? no_id : from_largest[k], states, spreads, largest);
    }
  }
};

} // namespace plateau::inline v0
