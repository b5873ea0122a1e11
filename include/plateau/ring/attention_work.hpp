// SPDX-License-Identifier: Apache-2.0
//
// What a ring attention will do, before there is anything to do it with: blocks, hops, bytes and floating
// point operations of each rank, by the arithmetic that the operator itself goes by.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/attention_rounds.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/ring/sequence_split.hpp>

#include <algorithm>

namespace plateau::inline v0 {

// Of one rank, for one sequence.
struct attention_work {
  index_t rounds = 0; // in each, a sub-block of every rank goes around
  index_t steps = 0;  // rounds x ranks: a sub-block, of one rank or another, is met
  index_t tiles = 0;  // of scores, for each tile.kv_heads key heads
  index_t pairs = 0;  // of a query and a key in those tiles, whether it sees it or not
  double forward_flops = 0, backward_flops = 0; // of the products: two, and five, for each pair and head
  std::uint64_t forward_bytes = 0, backward_bytes = 0; // sent

  // Of the whole shape, given sizeof(T) of what keys and values are made of. Throws config_error for a shape
  // that cannot work.
  static attention_work of(const attention_shape& shape, const sequence_split& split,
                           const packed_documents& documents, int rank, std::size_t scalar_bytes) {
    shape.check();
    attention_work w;
    const ring_schedule schedule(split.rows_of_ranks(),
                                 std::min(shape.hop_rows, std::max<index_t>(1, split.most_rows())));
    w.rounds = schedule.rounds();
    w.steps = schedule.steps();
    attention_rounds rounds;
    rounds.assign(split, schedule.hop_rows());
    each_queries(shape, split, documents, rank, [&](const attention_queries& q) {
      for (int owner = 0; owner < split.ranks(); ++owner)
        for (index_t round = 0; round < w.rounds && schedule.own(owner, round).rows != 0; ++round)
          for (const attention_piece& piece : rounds.pieces(owner, round))
            meet(q, piece, shape.tile.keys, [&](index_t, const attention_tile_mask& mask) {
              ++w.tiles;
              w.pairs += mask.queries.rows * mask.keys.rows;
            });
    });
    const double products = 2.0 * static_cast<double>(w.pairs) * static_cast<double>(shape.query_columns());
    w.forward_flops = 2 * products;
    w.backward_flops = shape.forward_only ? 0 : 5 * products;
    if (split.ranks() == 1) return w;
    const auto row = 2 * static_cast<std::uint64_t>(shape.key_columns());
    const std::uint64_t payload = row * scalar_bytes + (shape.hidden_keys ? 1 : 0),
                        carry = shape.forward_only ? 0 : row * sizeof(float);
    for (index_t t = 0; t < w.steps; ++t) {
      const ring_step at = schedule.at(rank, t);
      const auto rows = static_cast<std::uint64_t>(at.rows);
      const std::uint64_t moved = at.hop + 1 == split.ranks() ? 0 : rows * payload;
      w.forward_bytes += moved;
      w.backward_bytes += shape.forward_only ? 0 : moved + rows * carry;
    }
    return w;
  }
};

} // namespace plateau::inline v0
