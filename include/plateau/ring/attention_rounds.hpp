// SPDX-License-Identifier: Apache-2.0
//
// What of a ring attention meets where: which rows of a rank are in which of the sub-blocks that go around,
// and into which tiles queries and keys are cut. A sub-block takes its share of each of the rank's chunks.
// Were it one chunk after another, then in each step some ranks would see all of what they hold and others
// nothing of it, and all would wait for the slowest; so the work is even at every step. Integers only; every
// rank computes the same, and so does a planner.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/ring/sequence_split.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Consecutive rows of a rank that are at consecutive positions.
struct attention_piece {
  index_t local_row = 0; // of the rank that has them
  index_t block_row = 0; // of the sub-block that they are in
  position_range positions{};
};

// The pieces of every sub-block of every rank. Made again for each sequence, in the memory of the last one.
class attention_rounds {
 public:
  // Sub-blocks have the sizes of ring_schedule(split.rows_of_ranks(), hop_rows).
  void assign(const sequence_split& split, index_t hop_rows) {
    pieces_.clear();
    first_.clear();
    rounds_.clear();
    for (int r = 0; r < split.ranks(); ++r) add_rank(split, r, hop_rows);
    first_.push_back(pieces_.size());
  }
  std::span<const attention_piece> pieces(int owner, index_t round) const {
    const std::size_t at = rounds_[static_cast<std::size_t>(owner)] + static_cast<std::size_t>(round);
    return {pieces_.data() + first_[at], first_[at + 1] - first_[at]};
  }

 private:
  void add_rank(const sequence_split& split, int rank, index_t hop_rows) {
    rounds_.push_back(first_.size());
    const auto chunks = split.chunks(rank);
    used_.assign(chunks.size(), 0);
    for (index_t left = split.rows(rank), rows = 0; left > 0; left -= rows) {
      rows = std::min(hop_rows, left);
      first_.push_back(pieces_.size());
      // Of what is left of the chunks each gives its share, rounded so that together they give `rows`.
      index_t before = 0, chunk_row = 0, block_row = 0;
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        const index_t rest = chunks[c].rows - used_[c];
        const index_t n = share(before + rest, rows, left) - share(before, rows, left);
        if (n != 0) pieces_.push_back({chunk_row + used_[c], block_row, {chunks[c].first + used_[c], n}});
        block_row += n;
        before += rest;
        used_[c] += n;
        chunk_row += chunks[c].rows;
      }
    }
  }
  // part x rows / whole, without overflow for sizes that a machine has.
  static index_t share(index_t part, index_t rows, index_t whole) {
    if (rows == whole) return part;
    if (whole > (index_t{1} << 62) / rows)
      throw config_error("plateau: ring_attention: " + std::to_string(whole) +
                         " rows of a rank in sub-blocks of " + std::to_string(rows) + " overflow");
    return part * rows / whole;
  }

  std::vector<attention_piece> pieces_;
  std::vector<std::size_t> first_, rounds_; // pieces of each sub-block; sub-blocks of each rank
  std::vector<index_t> used_;
};

// Queries of a rank that are computed together: rows at consecutive positions.
struct attention_queries {
  index_t local_row = 0;
  position_range positions{};
  position_range seen{};      // the positions of all keys that any of them sees
  attention_tile_mask mask{}; // its keys are filled in by `meet`
};

// f(attention_queries) for all rows of a rank.
template <class F>
void each_queries(const attention_shape& shape, const sequence_split& split,
                  const packed_documents& documents, int rank, F f) {
  index_t local = 0;
  for (const position_range& chunk : split.chunks(rank))
    for (index_t first = chunk.first; first < chunk.end();) {
      attention_queries q;
      q.mask.causal = shape.mask == attention_mask::causal;
      index_t end = std::min(chunk.end(), first + std::min(shape.tile.queries, chunk.end() - first));
      index_t d = documents.at(first), n = 0;
      q.mask.begins[0] = documents[d].first;
      // Documents until the rows or the mask are full; empty ones are passed over.
      for (index_t at = first; at < end; ++d) {
        if (documents[d].end() <= at) continue;
        at = documents[d].end();
        q.mask.begins[++n] = at;
        if (n == attention_tile_mask::most_documents) end = std::min(end, at);
      }
      q.mask.documents = n;
      q.local_row = local;
      q.positions = q.mask.queries = {first, end - first};
      const index_t last = q.mask.causal ? end : q.mask.begins[n];
      q.seen = {q.mask.begins[0], last - q.mask.begins[0]};
      f(q);
      local += end - first;
      first = end;
    }
}

// f(rows of the piece [first, first + n), mask) for the keys of a piece that any of these queries sees, up to
// `most` at a time.
template <class F>
void meet(const attention_queries& queries, const attention_piece& piece, index_t most, F f) {
  const index_t first = std::max(queries.seen.first, piece.positions.first),
                end = std::min(queries.seen.end(), piece.positions.end());
  for (index_t at = first; at < end;) {
    attention_tile_mask mask = queries.mask;
    mask.keys = {at, std::min(most, end - at)};
    f(at - piece.positions.first, mask);
    at += mask.keys.rows;
  }
}

} // namespace plateau::inline v0
