// SPDX-License-Identifier: Apache-2.0
//
// Where experts live: dealt to the ranks in blocks of neighbours, as evenly as possible. Experts need not
// divide by ranks, and there may be more ranks than experts: some ranks are then home to none.
#pragma once

#include <plateau/config.hpp>

namespace plateau::inline v0 {

struct expert_homes {
  index_t experts = 0;
  int ranks = 1;

  // The experts of a rank are [first(rank), first(rank) + count(rank)).
  constexpr index_t first(int rank) const {
    const index_t even = experts / ranks, rest = experts % ranks;
    return even * rank + (rank < rest ? rank : rest);
  }
  constexpr index_t count(int rank) const { return first(rank + 1) - first(rank); }
  // The most that any rank has.
  constexpr index_t most() const { return (experts + ranks - 1) / ranks; }
  // The rank that owns an expert in [0, experts).
  constexpr int home(index_t expert) const {
    const index_t even = experts / ranks, rest = experts % ranks, longer = rest * (even + 1);
    return static_cast<int>(expert < longer ? expert / (even + 1) : rest + (expert - longer) / even);
  }
};

} // namespace plateau::inline v0
