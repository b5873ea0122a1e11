// SPDX-License-Identifier: Apache-2.0
//
// The row passes of causal attention that never holds more than a tile of scores (online softmax: Milakov and
// Gimelshein 2018; tiles: Dao et al. 2022). Per query row two numbers are carried from key tile to key tile,
// the running maximum m and the sum of exp(score - m), and the backward needs nothing else. The products
// between the passes are the backend's batched ones; a batch is a key-value head of a sequence. The causal
// mask costs no test per element: the keys that a row sees are a prefix of the tile's columns.
#pragma once

#include "rotary.hpp"
#include "types.hpp"

namespace moe {

// Where a tile of scores lies. Its rows are query rows of each batch, in the packed layout of head_layout,
// from first_query_row on; its columns are keys from first_key on. packed_rows is the number of query rows of
// a batch.
struct attention_tile {
  index_t first_query_row = 0, first_key = 0, group = 1, packed_rows = 0;

  PLATEAU_HD constexpr index_t position(index_t i) const { return (first_query_row + i) / group; }
  // The first `visible` of the tile's keys are not after row i's position.
  PLATEAU_HD constexpr index_t visible(index_t i, index_t keys) const {
    const index_t n = position(i) - first_key + 1;
    return n < 0 ? 0 : n < keys ? n : keys;
  }
  PLATEAU_HD constexpr index_t state_row(index_t batch, index_t i) const {
    return batch * packed_rows + first_query_row + i;
  }
};

// Over rows{batches * tile_rows}: one key tile of the online softmax. Before the first tile of a row its
// maximum is plateau::lowest<float>(), its sum 0 and its accumulator 0. A row that sees no key of this tile
// keeps its state.
struct attention_softmax_tile {
  attention_tile where;
  float score_scale = 1.0f; // > 0

  template <class Team, class T>
  PLATEAU_HD void
  operator()(Team& team, index_t row,
             tile_batch<const float> scores,        // (batches, tile_rows, keys), q . k
             tile_batch<T> probabilities,           // as scores, written: 0 where masked
             view<float> maximum, view<float> sum,  // (batches * packed_rows), updated
             tile_batch<float> accumulator) const { // (batches, tile_rows, head_size), rescaled
    const index_t batch = row / scores.rows, i = row % scores.rows, keys = scores.cols;
    const index_t visible = where.visible(i, keys), at = where.state_row(batch, i);
    const float scale = score_scale;
    const float* score = scores[batch].row(i);
    T* probability = probabilities[batch].row(i);
    team.for_each(keys - visible, [to = probability + visible](index_t j) { to[j] = narrow<T>(0.0f); });
    if (visible == 0) return;

    const float before = maximum[at], sum_before = sum[at];
    const float now =
        team.reduce(visible, before, plateau::maximum{}, [=](index_t j) { return score[j] * scale; });
    const float added =
        team.reduce(visible, 0.0f, plus{}, [=](index_t j) { return plateau::exp(score[j] * scale - now); });
    team.for_each(visible,
                  [=](index_t j) { probability[j] = narrow<T>(plateau::exp(score[j] * scale - now)); });
    const float factor = plateau::exp(before - now);
    if (factor != 1.0f) { // mostly 1 after the first tiles
      float* values = accumulator[batch].row(i);
      team.for_each(accumulator.cols, [=](index_t e) { values[e] *= factor; });
    }
    team.once([=] {
      maximum[at] = now;
      sum[at] = sum_before * factor + added;
    });
  }
};

// Over rows{batches * tile_rows}, after the last key tile: divides by the sum and writes heads side by side.
struct attention_finish {
  attention_tile where;
  head_layout layout;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile_batch<const float> accumulator, // (batches, tile_rows, head_size)
                             view<const float> sum,               // (batches * packed_rows)
                             tile<T> flat_output) const { // (tokens, query_heads * head_size), written
    const index_t batch = row / accumulator.rows, i = row % accumulator.rows;
    const index_t sequence = batch / layout.kv_heads, kv_head = batch % layout.kv_heads;
    const index_t token = sequence * layout.sequence_length + where.position(i);
    const index_t head = kv_head * where.group + (where.first_query_row + i) % where.group;
    const float total = sum[where.state_row(batch, i)];
    const float* from = accumulator[batch].row(i);
    T* to = flat_output.row(token) + head * layout.head_size;
    team.for_each(layout.head_size, [=](index_t e) { to[e] = narrow<T>(from[e] / total); });
  }
};

// Over rows{batches * packed_rows}: what the backward of the softmax takes off every gradient of a
// probability.
struct attention_row_dots {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             view<const T> packed_output,  // (batches * packed_rows, head_size)
                             view<const T> packed_doutput, // as packed_output
                             index_t head_size,
                             view<float> dots) const { // (batches * packed_rows), written
    const T* output = packed_output.p + row * head_size;
    const T* doutput = packed_doutput.p + row * head_size;
    const float dot =
        team.reduce(head_size, 0.0f, plus{}, [=](index_t e) { return widen(output[e]) * widen(doutput[e]); });
    team.once([=] { dots[row] = dot; });
  }
};

// Over rows{batches * tile_rows}: recomputes the probabilities of a tile from its scores and the saved
// maximum and sum.
struct attention_backward_tile {
  attention_tile where;
  float score_scale = 1.0f; // > 0

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile_batch<const float> scores,         // (batches, tile_rows, keys), q . k
                             tile_batch<const float> dprobabilities, // as scores, doutput . v
                             view<const float> maximum, view<const float> sum, // (batches * packed_rows)
                             view<const float> dots,                           // (batches * packed_rows)
                             tile_batch<T> probabilities,   // as scores, written: 0 where masked
                             tile_batch<T> dscores) const { // as scores, written: the gradient of q . k
    const index_t batch = row / scores.rows, i = row % scores.rows, keys = scores.cols;
    const index_t visible = where.visible(i, keys), at = where.state_row(batch, i);
    const float scale = score_scale, largest = maximum[at], inverse = 1.0f / sum[at], dot = dots[at];
    const float* score = scores[batch].row(i);
    const float* dprobability = dprobabilities[batch].row(i);
    T* probability = probabilities[batch].row(i);
    T* dscore = dscores[batch].row(i);
    team.for_each(visible, [=](index_t j) {
      const float p = plateau::exp(score[j] * scale - largest) * inverse;
      probability[j] = narrow<T>(p);
      dscore[j] = narrow<T>(p * (dprobability[j] - dot) * scale);
    });
    team.for_each(keys - visible, [p = probability + visible, d = dscore + visible](index_t j) {
      p[j] = narrow<T>(0.0f);
      d[j] = narrow<T>(0.0f);
    });
  }
};

} // namespace moe
