// SPDX-License-Identifier: Apache-2.0
//
// Who differs when ranks disagree: the ones outside the largest group of equals. Everyone who has the same
// values gets the same answer.
#pragma once

#include <plateau/config.hpp>

namespace plateau::inline v0 {

// The rank whose value most ranks hold; among equally large groups the one with the lowest rank.
template <class ValueOf> int majority_rank(int ranks, ValueOf value_of) {
  int best = 0, best_count = 0;
  for (int r = 0; r < ranks && 2 * best_count <= ranks; ++r) {
    int count = 0;
    for (int q = 0; q < ranks; ++q) count += value_of(q) == value_of(r) ? 1 : 0;
    if (count > best_count) {
      best = r;
      best_count = count;
    }
  }
  return best;
}

// The lowest rank that differs from the majority; -1 when all agree.
template <class ValueOf> int first_outlier(int ranks, ValueOf value_of) {
  const int common = majority_rank(ranks, value_of);
  for (int r = 0; r < ranks; ++r)
    if (!(value_of(r) == value_of(common))) return r;
  return -1;
}

} // namespace plateau::inline v0
