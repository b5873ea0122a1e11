// SPDX-License-Identifier: Apache-2.0
//
// All that outlives a layer's forward: how many rows every rank sends to every expert, and which of them
// other ranks than the expert's home compute. It is on the host, ranks x experts x 8 bytes and a few pieces,
// the same on every rank; everything else follows from it. A plan is a value: as many as are wanted may be in
// flight.
#pragma once

#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/config.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace plateau::inline v0 {

struct dispatch_plan {
  int ranks = 0;
  index_t experts = 0;
  index_t tokens = 0;              // of this rank
  std::vector<index_t> rows;       // (ranks, experts): rows that a rank sends to an expert
  std::vector<moved_piece> pieces; // sorted by expert, then rank

  index_t rows_of(int source, index_t expert) const {
    return rows[static_cast<std::size_t>(source * experts + expert)];
  }
  std::span<const index_t> rows_of_rank(int source) const {
    return std::span<const index_t>(rows).subspan(static_cast<std::size_t>(source * experts),
                                                  static_cast<std::size_t>(experts));
  }
};

} // namespace plateau::inline v0
