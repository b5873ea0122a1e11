// SPDX-License-Identifier: Apache-2.0
//
// A cost that no placement can go below, however it is found: what planners are judged by where all plans are
// too many to try.
#pragma once

#include <plateau/all_to_all/expert_homes.hpp>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

namespace placement_bound {

using plateau::index_t;

struct profile_limits {
  index_t foreign_experts = 0;
  index_t least_piece = 1;
  index_t weight_move_rows = 0;
};

// The lowest target that passes all of these, each of which every plan that reaches the target must pass:
// - a rank above it gives away its excess, at least, in pieces that its experts of least_piece rows and more
//   can give, each at most as large as an expert and as what a helper may hold besides the weights' cost;
// - what a rank takes on balance is at most its room below the target, less the cost of one expert's weights,
//   and at most what the largest foreign_experts of all experts have;
// - there are no more pieces than slots.
inline index_t lowest_cost(const plateau::expert_homes& homes, std::span<const index_t> rows,
                           const profile_limits& limits) {
  const auto at = [](auto i) { return static_cast<std::size_t>(i); };
  std::vector<index_t> native(at(homes.ranks), 0), all;
  std::vector<std::vector<index_t>> movable(native.size()); // largest first
  index_t total = 0;
  for (index_t e = 0; e < homes.experts; ++e) {
    const std::size_t home = at(homes.home(e));
    native[home] += rows[at(e)];
    total += rows[at(e)];
    if (rows[at(e)] < limits.least_piece) continue;
    movable[home].push_back(rows[at(e)]);
    all.push_back(rows[at(e)]);
  }
  for (auto& m : movable) std::sort(m.begin(), m.end(), std::greater<>());
  std::sort(all.begin(), all.end(), std::greater<>());
  index_t most_taken = 0;
  for (std::size_t k = 0; k < all.size() && static_cast<index_t>(k) < limits.foreign_experts; ++k)
    most_taken += all[k];

  const auto possible = [&](index_t target) {
    index_t excess = 0, room = 0, pieces = 0;
    for (std::size_t r = 0; r < native.size(); ++r) {
      if (native[r] <= target) {
        const index_t free = std::max<index_t>(0, target - native[r] - limits.weight_move_rows);
        room += std::min(free, most_taken);
        continue;
      }
      const index_t largest_piece = target - limits.weight_move_rows;
      if (largest_piece < limits.least_piece) return false;
      index_t left = native[r] - target, needed = 0;
      excess += left;
      const index_t by_size = (left + largest_piece - 1) / largest_piece;
      for (const index_t n : movable[r]) {
        if (left <= 0) break;
        left -= n;
        ++needed;
      }
      if (left > 0) return false;
      pieces += std::max(needed, by_size);
    }
    return excess <= room && pieces <= limits.foreign_experts * homes.ranks;
  };
  index_t low = (total + homes.ranks - 1) / homes.ranks,
          high = std::max(low, *std::max_element(native.begin(), native.end()));
  while (low < high) {
    const index_t middle = low + (high - low) / 2;
    if (possible(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

} // namespace placement_bound
