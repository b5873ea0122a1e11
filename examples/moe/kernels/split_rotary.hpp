// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions of a sequence that is split over ranks: a row turns by its place in the whole sequence,
// wherever it lies on its rank. Heads stay side by side. The angles are those of kernels/rotary.hpp.
#pragma once

#include "rotary.hpp"
#include "types.hpp"

#include <plateau/ring/sequence_split.hpp>

namespace moe {

// The positions of a rank's rows: of each sequence `rows`, the first of them from `front` on, those behind
// front_rows from `back` on.
struct split_positions {
  index_t rows = 0, front = 0, front_rows = 0, back = 0;

  PLATEAU_HD constexpr index_t operator()(index_t token) const {
    const index_t row = token % rows;
    return row < front_rows ? front + row : back + row - front_rows;
  }
};

// Of a rank, in a balanced split of one sequence: two chunks at most.
inline split_positions positions_of(const plateau::sequence_split& split, int rank) {
  const auto chunks = split.chunks(rank);
  split_positions p;
  p.rows = split.rows(rank);
  if (!chunks.empty()) p.front = chunks.front().first, p.front_rows = chunks.front().rows;
  if (chunks.size() > 1) p.back = chunks.back().first;
  return p;
}

// Over rows{tokens}. direction is 1, or -1 to turn back, which is also its backward.
struct rotate_split_rows {
  split_positions positions;
  index_t heads = 0, head_size = 0;
  double theta = 1e6;
  float direction = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             tile<const T> from, // (tokens, heads * head_size)
                             tile<T> to) const { // the same
    const T* in = from.row(token);
    T* out = to.row(token);
    const index_t size = head_size;
    const head_layout layout{positions.rows, heads, heads, size};
    detail::turn_all_heads(team, positions(token), layout, theta, heads, direction, [=](index_t h) {
      return detail::head_pair<T, T>{in + h * size, out + h * size};
    });
  }
};

} // namespace moe
