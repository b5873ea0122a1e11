// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a communicator have agreed on when it splits: computed alike on each of them from
// everybody's color and key, and handed to the world, which makes the part that this rank belongs to.
#pragma once

#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <span>
#include <vector>

namespace plateau::inline v0::host {

struct split_group {
  std::uint64_t sequence = 0; // of the split, among the operations of the communicator
  int color = -1;             // negative: this rank is in no part
  int part = 0;               // the place of `color` among the colors that are not negative, in order
  int parts = 0;              // of those, how many
  std::vector<int> members{}; // ranks in the communicator, in the order of the part; empty without a part
  std::int64_t offer = 0;     // the largest number that a rank's world has offered, see basic_communicator
};

// Three integers a rank, in rank order: color, key, what its world offers. `rank` is the one that asks.
inline split_group agree_on_split(std::uint64_t sequence, int rank, std::span<const std::int64_t> all) {
  const int ranks = static_cast<int>(all.size() / 3);
  const auto color_of = [&](int r) { return all[3 * static_cast<std::size_t>(r)]; };
  const auto key_of = [&](int r) { return all[3 * static_cast<std::size_t>(r) + 1]; };
  split_group agreed;
  agreed.sequence = sequence;
  agreed.color = static_cast<int>(color_of(rank));
  agreed.offer = std::numeric_limits<std::int64_t>::min();
  std::set<std::int64_t> colors;
  for (int r = 0; r < ranks; ++r) {
    agreed.offer = std::max(agreed.offer, all[3 * static_cast<std::size_t>(r) + 2]);
    if (color_of(r) >= 0) colors.insert(color_of(r));
    if (agreed.color >= 0 && color_of(r) == agreed.color) agreed.members.push_back(r);
  }
  std::stable_sort(agreed.members.begin(), agreed.members.end(),
                   [&](int a, int b) { return key_of(a) < key_of(b); });
  agreed.parts = static_cast<int>(colors.size());
  agreed.part = static_cast<int>(std::distance(colors.begin(), colors.lower_bound(agreed.color)));
  return agreed;
}

} // namespace plateau::inline v0::host
