// SPDX-License-Identifier: Apache-2.0
//
// The tokens of a rank's micro-batch, as whoever forces their routing counts them: by their places in the
// batch, wherever they lie. So a token goes to the same experts however many ranks share its sequence.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/scenario.hpp>
#include <plateau/ring/packed_documents.hpp>

#include <span>

namespace moe {

using plateau::index_t;

struct placed_tokens {
  plateau::token_range range; // `first` is the beginning of the first sequence
  // The rank's part of each sequence of `context` tokens; none: all of it.
  std::span<const plateau::position_range> positions{};
  index_t context = 0;

  // f(range of consecutive tokens) for all of them, in the order in which they lie on the rank.
  template <class F> void each_range(F f) const {
    if (positions.empty()) return f(range);
    plateau::token_range part = range;
    for (index_t begin = range.first, done = 0; done < range.tokens; begin += context)
      for (const plateau::position_range& own : positions) {
        part.first = begin + own.first;
        part.first_of_rank = range.first_of_rank + done;
        part.tokens = own.rows;
        done += own.rows;
        f(part);
      }
  }
};

} // namespace moe
