// SPDX-License-Identifier: Apache-2.0
//
// The row passes of an attention that are not about scores: queries into a tile and their gradients out of
// it, what a tile has summed joined to what all have, and what sums become in the end.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/attention_kernels.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cmath>
#include <cstdint>

namespace plateau::inline v0 {

// Over rows{batches x rows of the tile}: the queries of a tile, heads of a group one after another, from rows
// with all heads side by side.
struct attention_pack {
  attention_rows rows;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const T> from, // (positions, heads x head_size)
                             tile_batch<T> to) const {                    // (batches, rows, head_size)
    const index_t b = row / to.rows, i = row % to.rows;
    const T* source = from.row(rows.position(i)) + rows.head(b, i) * to.cols;
    T* target = to[b].row(i);
    team.for_each(to.cols, [=](index_t e) { target[e] = source[e]; });
  }
};
// Over rows{batches x rows of the tile}: added back there.
struct attention_unpack {
  attention_rows rows;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<const float> from, tile<float> to) const {
    const index_t b = row / from.rows, i = row % from.rows;
    const float* source = from[b].row(i);
    float* target = to.row(rows.position(i)) + rows.head(b, i) * from.cols;
    team.for_each(from.cols, [=](index_t e) { target[e] += source[e]; });
  }
};

namespace detail {
// A row's state and sums += those of a part that was summed apart.
template <class Team, class From>
PLATEAU_HD void join_attention(Team& team, const online_lse& part, const From* from, index_t size,
                               online_lse* state, float* to) {
  if (part.s == 0.0f) return; // nothing of it is looked at
  const online_lse before = *state;
  const lse_shift by(before.m, part.m);
  const float first = by.first, second = by.second;
  team.for_each(size, [=](index_t e) { to[e] = to[e] * first + widen(from[e]) * second; });
  team.once([=] { *state = merge(before, part); });
}
} // namespace detail

// Over rows{batches x rows of the tile}: what a tile has summed, joined to all of its rows' sums.
struct attention_join {
  attention_rows rows;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const online_lse> tile_states,
                             tile_batch<const float> tile_sums,
                             tile<online_lse> states,  // (positions, heads), updated
                             tile<float> sums) const { // (positions, heads x head_size), updated
    const index_t b = row / tile_sums.rows, i = row % tile_sums.rows, size = tile_sums.cols;
    detail::join_attention(team, tile_states[row], tile_sums[b].row(i), size,
                           &states(rows.position(i), rows.head(b, i)),
                           sums.row(rows.position(i)) + rows.head(b, i) * size);
  }
};
// Over rows{positions x heads}: the same for who gives (out, lse).
struct attention_join_lse {
  index_t heads = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const T> result, // (positions, heads x head_size)
                             tile<const float> lses,                        // (heads, positions)
                             view<online_lse> states, tile<float> sums) const {
    const index_t i = row / heads, h = row % heads, size = result.cols / heads;
    detail::join_attention(team, online_lse::from_lse(lses(h, i)), result.row(i) + h * size, size,
                           states.p + row, sums.row(i) + h * size);
  }
};

// Over rows{positions x heads}: sums become means; 0 of a row that saw no key.
struct attention_mean {
  index_t heads = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const online_lse> states, tile<const float> sums,
                             tile<T> result) const {
    divide(team, row, states, sums, result);
  }
  template <class Team> // in place
  PLATEAU_HD void operator()(Team& team, index_t row, view<const online_lse> states, tile<float> sums) const {
    divide(team, row, states, sums, sums);
  }

 private:
  template <class Team, class From, class T>
  PLATEAU_HD void divide(Team& team, index_t row, view<const online_lse> states, tile<From> sums,
                         tile<T> result) const {
    const index_t i = row / heads, size = sums.cols / heads, at = row % heads * size;
    const float s = states[row].s, inverse = s == 0.0f ? 0.0f : 1.0f / s;
    const From* from = sums.row(i) + at;
    T* to = result.row(i) + at;
    team.for_each(size, [=](index_t e) { to[e] = narrow<T>(from[e] * inverse); });
  }
};

// Over rows{positions x heads}: what the backward of a softmax takes off each gradient of a share.
struct attention_dots {
  index_t heads = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const T> result, tile<const T> upstream,
                             view<float> dots) const { // (positions x heads), written
    const index_t i = row / heads, size = result.cols / heads, at = row % heads * size;
    const T* a = result.row(i) + at;
    const T* b = upstream.row(i) + at;
    const float dot = team.reduce(size, 0.0f, plus{}, [=](index_t e) { return widen(a[e]) * widen(b[e]); });
    team.once([=] { dots[row] = dot; });
  }
};

// Over rows: zeros.
struct attention_clear {
  template <class Team> PLATEAU_HD void operator()(Team& team, index_t row, tile<float> sums) const {
    float* to = sums.row(row);
    team.for_each(sums.cols, [=](index_t e) { to[e] = 0.0f; });
  }
};

// Over elements{heads x positions}: logarithms for a kernel of the user's; +infinity where no key was seen.
struct attention_logarithms {
  PLATEAU_HD void operator()(index_t k, view<const online_lse> states, // (positions, heads)
                             tile<float> lses) const {                 // (heads, positions), written
    const index_t h = k / lses.cols, i = k % lses.cols;
    const online_lse state = states[i * lses.rows + h];
    const float infinity = bit_cast<float>(std::uint32_t{0x7f800000});
    lses(h, i) = state.s == 0.0f ? infinity : state.m + ::logf(state.s);
  }
};

} // namespace plateau::inline v0
