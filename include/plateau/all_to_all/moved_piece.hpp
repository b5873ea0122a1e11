// SPDX-License-Identifier: Apache-2.0
//
// In what planners say where experts are computed: pieces of an expert that a rank other than its home takes
// over, and multiples of the mean load as whole numbers, so that every rank decides the same.
#pragma once

#include <plateau/config.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

namespace plateau::inline v0 {

// Rows of the expert that this rank, not the expert's home, computes.
struct moved_piece {
  index_t expert = 0;
  int rank = 0;
  index_t rows = 0; // more than 0

  friend constexpr bool operator==(const moved_piece&, const moved_piece&) = default;
};

// Sorts by expert, then by rank, and makes one piece of those that agree in both, since weights need to
// travel once for them. How many are gone. Allocates nothing.
inline index_t merge_pieces(std::vector<moved_piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const moved_piece& a, const moved_piece& b) {
    return a.expert != b.expert ? a.expert < b.expert : a.rank < b.rank;
  });
  std::size_t kept = 0;
  for (const moved_piece& next : pieces)
    if (kept > 0 && pieces[kept - 1].expert == next.expert && pieces[kept - 1].rank == next.rank)
      pieces[kept - 1].rows += next.rows;
    else
      pieces[kept++] = next;
  const index_t gone = static_cast<index_t>(pieces.size() - kept);
  pieces.resize(kept);
  return gone;
}

// rows x millionths / 1,000,000, rounded down, without overflow: what would not fit is the largest number.
// Both are at least 0, millionths at most 10^12.
constexpr index_t scaled(index_t rows, index_t millionths) {
  constexpr index_t unit = 1'000'000, largest = std::numeric_limits<index_t>::max();
  const index_t rest = rows % unit * millionths / unit; // at most 10^12
  if (millionths > 0 && rows / unit > (largest - rest) / millionths) return largest;
  return rows / unit * millionths + rest;
}

} // namespace plateau::inline v0
