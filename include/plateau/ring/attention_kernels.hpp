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

#include <cstdint>

namespace plateau::inline v0 {

// Which query a row of a tile is. Row i of a batch has position i / group of the tile; batch b has the group
// query heads from b x group on, of those that all batches have side by side.
struct attention_rows {
  index_t group = 1;

  PLATEAU_HD constexpr index_t position(index_t i) const { return i / group; }
  PLATEAU_HD constexpr index_t head(index_t b, index_t i) const { return b * group + i % group; }
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
    return hidden[j] != 0 ? bit_cast<float>(std::uint32_t{0xff800000}) : z[j]; // -infinity
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
  attention_rows rows;
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
    const attention_columns seen = mask.seen(rows.position(i));
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
                             tile<const online_lse> states,    // (positions of the tile, heads)
                             tile<const float> dots,           // as states: out . dout
                             tile_batch<T> shares,             // as scores, written
                             tile_batch<T> dscores) const {    // as scores, written
    const index_t b = row / scores.rows, i = row % scores.rows;
    turn(team, b, i, scores[b].row(i), dshares[b].row(i), scores.cols, hidden, states, dots, shares[b].row(i),
         dscores[b].row(i));
  }
  // In place: scores become shares, and their gradients those of scores.
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, tile_batch<float> scores, tile_batch<float> dshares,
                             view<const unsigned char> hidden, tile<const online_lse> states,
                             tile<const float> dots) const {
    const index_t b = row / scores.rows, i = row % scores.rows;
    float* z = scores[b].row(i);
    float* d = dshares[b].row(i);
    turn(team, b, i, z, d, scores.cols, hidden, states, dots, z, d);
  }

 private:
  template <class Team, class T>
  PLATEAU_HD void turn(Team& team, index_t b, index_t i, const float* z, const float* dshare, index_t keys,
                       view<const unsigned char> hidden, tile<const online_lse> states,
                       tile<const float> dots, T* share, T* dscore) const {
    const attention_columns seen = mask.seen(rows.position(i));
    detail::clear_unseen(team, share, seen, keys);
    detail::clear_unseen(team, dscore, seen, keys);
    if (seen.count() == 0) return;
    const index_t position = rows.position(i), head = rows.head(b, i);
    const online_lse state = states(position, head);
    const float m = state.m, dot = dots(position, head);
    const float inverse = state.s == 0.0f ? 0.0f : 1.0f / state.s;
    detail::with_scores(z, hidden, seen.first, [&](auto score) {
      team.for_each(seen.count(), [=, p = share + seen.first, d = dscore + seen.first,
                                   from = dshare + seen.first](index_t j) {
        const float e = score.kept(j, exp(score(j) - m) * inverse);
        const float gradient = score.kept(j, e * (from[j] - dot));
        p[j] = narrow<T>(e);
        d[j] = narrow<T>(gradient);
      });
    });
  }
};

} // namespace plateau::inline v0
