// SPDX-License-Identifier: Apache-2.0
//
// The row passes of an attention that sees a tile of scores at a time (online softmax: Milakov and Gimelshein
// 2018; tiles: Dao et al. 2022). The rows of a tile are a key head's queries with all heads of its group, one
// position after another. The keys that a row sees are consecutive columns, so that the mask costs no test
// for each score; only of hidden keys one is made.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cmath>
#include <limits>

namespace plateau::inline v0 {

// Which query a row of a tile is: row i of batch b has position i / group of the tile, and a head of the key
// head first_kv_head + b.
struct attention_rows {
  index_t first_kv_head = 0, group = 1, heads = 1;

  PLATEAU_HD constexpr index_t head(index_t b, index_t i) const {
    return (first_kv_head + b) * group + i % group;
  }
  // Of an array (positions of the tile, heads).
  PLATEAU_HD constexpr index_t place(index_t b, index_t i) const { return i / group * heads + head(b, i); }
};

namespace detail {
// The scores of a row as they are seen.
struct plain_scores {
  const float* z;
  PLATEAU_HD float operator()(index_t j) const { return z[j]; }
  PLATEAU_HD float kept(index_t, float value) const { return value; }
};
struct hiding_scores {
  const float* z;
  const unsigned char* hidden;
  PLATEAU_HD float operator()(index_t j) const {
    return hidden[j] != 0 ? -std::numeric_limits<float>::infinity() : z[j];
  }
  // By selection: whatever a hidden key holds, nothing comes of it.
  PLATEAU_HD float kept(index_t j, float value) const { return hidden[j] != 0 ? 0.0f : value; }
};
template <class F>
PLATEAU_HD void with_scores(const float* z, view<const unsigned char> hidden, index_t first, F f) {
  if (hidden.n == 0)
    f(plain_scores{z + first});
  else
    f(hiding_scores{z + first, hidden.p + first});
}
// 0 in the columns that a row does not see.
template <class Team, class T>
PLATEAU_HD void clear_unseen(Team& team, T* row, const attention_columns& seen, index_t keys) {
  if (seen.first != 0) team.for_each(seen.first, [=](index_t j) { row[j] = narrow<T>(0.0f); });
  if (seen.end != keys)
    team.for_each(keys - seen.end, [to = row + seen.end](index_t j) { to[j] = narrow<T>(0.0f); });
}
} // namespace detail

// Over rows{batches x rows of the tile}: e^(score - m), in T; m and the sum of them in the row's state. What
// the row has summed so far is brought to the new m.
struct attention_fold {
  attention_tile_mask mask;
  index_t group = 1;
  bool first = false; // there is nothing so far, and neither states nor sums are read

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<const float> scores,
                             view<const unsigned char> hidden, // (keys), or empty
                             tile_batch<T> shares,             // as scores, written
                             view<online_lse> states,          // (batches x rows)
                             tile_batch<float> sums) const {   // (batches, rows, head_size)
    const index_t b = row / scores.rows, i = row % scores.rows;
    fold(team, row, i, scores[b].row(i), scores.cols, hidden, shares[b].row(i), states, sums[b].row(i),
         sums.cols);
  }
  // In place.
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<float> scores,
                             view<const unsigned char> hidden, view<online_lse> states,
                             tile_batch<float> sums) const {
    const index_t b = row / scores.rows, i = row % scores.rows;
    float* z = scores[b].row(i);
    fold(team, row, i, z, scores.cols, hidden, z, states, sums[b].row(i), sums.cols);
  }

 private:
  template <class Team, class T>
  PLATEAU_HD void fold(Team& team, index_t row, index_t i, const float* z, index_t keys,
                       view<const unsigned char> hidden, T* share, view<online_lse> states, float* sums,
                       index_t size) const {
    const attention_columns seen = mask.seen(i / group);
    detail::clear_unseen(team, share, seen, keys);
    if (seen.count() == 0) {
      if (first) team.once([=] { states[row] = {}; });
      return;
    }
    online_lse before;
    if (!first) before = states[row];
    detail::with_scores(z, hidden, seen.first, [&](auto score) {
      // A NaN is passed over by the maximum, and shows in the sum.
      const float m = team.reduce(seen.count(), before.m, maximum{}, score);
      const float added = team.reduce(seen.count(), 0.0f, plus{}, [=, to = share + seen.first](index_t j) {
        const float e = exp(score(j) - m);
        to[j] = narrow<T>(e);
        return e;
      });
      const float factor = exp(before.m - m);
      if (!first && factor != 1.0f) // mostly 1 after the first tiles
        team.for_each(size, [=](index_t e) { sums[e] *= factor; });
      team.once([=] {
        states[row].m = m;
        states[row].s = before.s * factor + added;
      });
    });
  }
};

// Over rows{batches x rows of the tile}: the shares e^(score - m) / s, and the gradients of the products q .
// k but for the scale.
struct attention_gradient {
  attention_tile_mask mask;
  attention_rows rows;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<const float> scores,
                             tile_batch<const float> dshares,  // as scores: dout . v
                             view<const unsigned char> hidden, // (keys), or empty
                             view<const online_lse> states,    // (positions of the tile, heads)
                             view<const float> dots,           // as states: out . dout
                             tile_batch<T> shares,             // as scores, written
                             tile_batch<T> dscores) const {    // as scores, written
    const index_t b = row / scores.rows, i = row % scores.rows;
    turn(team, b, i, scores[b].row(i), dshares[b].row(i), scores.cols, hidden, states, dots, shares[b].row(i),
         dscores[b].row(i));
  }
  // In place: scores become shares, and their gradients those of scores.
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<float> scores, tile_batch<float> dshares,
                             view<const unsigned char> hidden, view<const online_lse> states,
                             view<const float> dots) const {
    const index_t b = row / scores.rows, i = row % scores.rows;
    float* z = scores[b].row(i);
    float* d = dshares[b].row(i);
    turn(team, b, i, z, d, scores.cols, hidden, states, dots, z, d);
  }

 private:
  template <class Team, class T>
  PLATEAU_HD void turn(Team& team, index_t b, index_t i, const float* z, const float* dshare, index_t keys,
                       view<const unsigned char> hidden, view<const online_lse> states,
                       view<const float> dots, T* share, T* dscore) const {
    const attention_columns seen = mask.seen(i / rows.group);
    detail::clear_unseen(team, share, seen, keys);
    detail::clear_unseen(team, dscore, seen, keys);
    if (seen.count() == 0) return;
    const online_lse state = states[rows.place(b, i)];
    const float m = state.m, dot = dots[rows.place(b, i)];
    const float inverse = state.s == 0.0f ? 0.0f : 1.0f / state.s;
    detail::with_scores(z, hidden, seen.first, [&](auto score) {
      team.for_each(seen.count(), [=, p = share + seen.first, d = dscore + seen.first,
                                   from = dshare + seen.first](index_t j) {
        const float e = exp(score(j) - m) * inverse;
        const float gradient = score.kept(j, e * (from[j] - dot));
        p[j] = narrow<T>(e);
        d[j] = narrow<T>(gradient);
      });
    });
  }
};

// Over rows{batches x rows of the tile}: the queries of a tile, heads of a group one after another, from rows
// with all heads side by side.
struct attention_pack {
  attention_rows rows;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const T> from, // (positions, heads x head_size)
                             tile_batch<T> to) const {                    // (batches, rows, head_size)
    const index_t b = row / to.rows, i = row % to.rows;
    const T* source = from.row(i / rows.group) + rows.head(b, i) * to.cols;
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
    float* target = to.row(i / rows.group) + rows.head(b, i) * from.cols;
    team.for_each(from.cols, [=](index_t e) { target[e] += source[e]; });
  }
};

namespace detail {
// A row's state and sums += those of a part that was summed apart.
template <class Team, class From>
PLATEAU_HD void join_attention(Team& team, const online_lse& part, const From* from, index_t size,
                               view<online_lse> states, index_t at, float* to) {
  if (part.s == 0.0f) return; // nothing of it is looked at
  const online_lse before = states[at];
  const lse_shift by(before.m, part.m);
  const float first = by.first, second = by.second;
  team.for_each(size, [=](index_t e) { to[e] = to[e] * first + widen(from[e]) * second; });
  team.once([=] { states[at] = merge(before, part); });
}
} // namespace detail

// Over rows{batches x rows of the tile}: what a tile has summed, joined to all of its rows' sums.
struct attention_join {
  attention_rows rows;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const online_lse> tile_states,
                             tile_batch<const float> tile_sums,
                             view<online_lse> states,  // (positions, heads), updated
                             tile<float> sums) const { // (positions, heads x head_size), updated
    const index_t b = row / tile_sums.rows, i = row % tile_sums.rows, size = tile_sums.cols;
    detail::join_attention(team, tile_states[row], tile_sums[b].row(i), size, states, rows.place(b, i),
                           sums.row(i / rows.group) + rows.head(b, i) * size);
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
    detail::join_attention(team, online_lse::from_lse(lses(h, i)), result.row(i) + h * size, size, states,
                           row, sums.row(i) + h * size);
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
    lses(h, i) = state.s == 0.0f ? std::numeric_limits<float>::infinity() : state.m + ::logf(state.s);
  }
};

} // namespace plateau::inline v0
