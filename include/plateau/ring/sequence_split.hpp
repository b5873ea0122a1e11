// SPDX-License-Identifier: Apache-2.0
//
// Which positions of a sequence are on which rank. A causal query sees all that is before it, so that equal
// parts one behind another would give the last rank nearly twice the mean of the work; the balanced split
// gives each rank one part of the front and its mirror image of the back. Integers only; every rank computes
// the same.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/ring/ring_schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// The local rows of a rank are its chunks one behind another, in the order of the list. A rank may have none.
class sequence_split {
 public:
  // Equal parts one behind another. Throws config_error without ranks, and for negative tokens.
  static sequence_split contiguous(index_t tokens, int ranks) {
    sequence_split s(tokens, ranks);
    const even_shards parts{tokens, ranks};
    for (int r = 0; r < ranks; ++r) s.add(r, {parts.first(r), parts.count(r)});
    s.close();
    return s;
  }
  // Of 2 x ranks equal parts rank r has part r and part 2 x ranks - 1 - r: causal work is the same but for
  // odd rows. They stay two chunks where one continues the other: so all ranks do the same in the same order.
  static sequence_split balanced(index_t tokens, int ranks) {
    return balanced(packed_documents(tokens), ranks);
  }
  // So each document: parts of document d begin with rank d, so that the odd rows of many documents are dealt
  // over all ranks.
  static sequence_split balanced(const packed_documents& documents, int ranks) {
    sequence_split s(documents.tokens(), ranks);
    for (index_t d = 0; d < documents.count(); ++d) {
      const position_range all = documents[d];
      const int count = ranks > 1 ? 2 * ranks : 1;
      const even_shards parts{all.rows, count};
      for (int p = 0; p < count; ++p) {
        const index_t mirrored = std::min(p, count - 1 - p);
        s.add(static_cast<int>((mirrored + d) % ranks), {all.first + parts.first(p), parts.count(p)});
      }
    }
    s.close();
    return s;
  }
  // Any: the chunks of each rank. Throws config_error, naming ranks and positions, unless every position of
  // the sequence is in exactly one of them.
  static sequence_split of(index_t tokens, const std::vector<std::vector<position_range>>& chunks_of_rank) {
    sequence_split s(tokens, static_cast<int>(chunks_of_rank.size()));
    s.check_cover(chunks_of_rank);
    for (std::size_t r = 0; r < chunks_of_rank.size(); ++r)
      for (const position_range& chunk : chunks_of_rank[r]) s.add(static_cast<int>(r), chunk);
    s.close();
    return s;
  }

  index_t tokens() const { return tokens_; }
  int ranks() const { return static_cast<int>(chunks_.size()); }
  // What ring_schedule asks for.
  std::span<const index_t> rows_of_ranks() const { return rows_; }
  index_t rows(int rank) const { return rows_[index(rank)]; }
  index_t most_rows() const { return *std::max_element(rows_.begin(), rows_.end()); }
  // None is empty.
  std::span<const position_range> chunks(int rank) const { return chunks_[index(rank)]; }

  // f(positions, local row of the first of them) for the local rows [first, first + rows) of a rank, in
  // order: one call for each chunk that they lie in.
  template <class F> void each_range(int rank, index_t first, index_t rows, F f) const {
    index_t at = 0;
    for (const position_range& chunk : chunks(rank)) {
      const index_t from = std::max(first, at), to = std::min(first + rows, at + chunk.rows);
      if (from < to) f(position_range{chunk.first + from - at, to - from}, from);
      at += chunk.rows;
    }
  }
  // The position of each local row of a rank.
  std::vector<index_t> positions(int rank) const {
    std::vector<index_t> out;
    out.reserve(static_cast<std::size_t>(rows(rank)));
    for (const position_range& chunk : chunks(rank))
      for (index_t p = chunk.first; p < chunk.end(); ++p) out.push_back(p);
    return out;
  }
  // Pairs of a query of this rank and a key, on any rank, that it sees: what its compute is proportional to.
  index_t visible_pairs(int rank, const packed_documents& documents, attention_mask mask) const {
    index_t pairs = 0;
    for (const position_range& chunk : chunks(rank))
      pairs += documents.visible_pairs(chunk, {0, tokens_}, mask);
    return pairs;
  }

  friend bool operator==(const sequence_split&, const sequence_split&) = default;

 private:
  sequence_split(index_t tokens, int ranks) : tokens_(tokens) {
    if (tokens < 0 || tokens > detail::most_extent || ranks < 1)
      throw config_error("plateau: sequence split: " + std::to_string(tokens) + " tokens over " +
                         std::to_string(ranks) + " ranks; expected 0 to 2^48 tokens and at least 1 rank");
    chunks_.resize(static_cast<std::size_t>(ranks));
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void add(int rank, position_range chunk) {
    if (chunk.rows != 0) chunks_[index(rank)].push_back(chunk);
  }
  void close() {
    for (const auto& chunks : chunks_) {
      index_t rows = 0;
      for (const position_range& chunk : chunks) rows += chunk.rows;
      rows_.push_back(rows);
    }
  }

  // In order of position each chunk must begin where the one before it ends.
  void check_cover(const std::vector<std::vector<position_range>>& chunks_of_rank) const {
    std::vector<std::pair<position_range, int>> all;
    for (std::size_t r = 0; r < chunks_of_rank.size(); ++r)
      for (const position_range& chunk : chunks_of_rank[r]) {
        const auto rank = static_cast<int>(r);
        if (chunk.first < 0 || chunk.rows < 0 || chunk.first > tokens_ || chunk.rows > tokens_ - chunk.first)
          throw config_error("plateau: sequence split: rank " + std::to_string(rank) + " has " + text(chunk) +
                             " of a sequence of " + std::to_string(tokens_) + " tokens");
        if (chunk.rows > 0) all.emplace_back(chunk, rank);
      }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    index_t covered = 0;
    int before = 0;
    for (const auto& [chunk, rank] : all) {
      if (chunk.first < covered)
        throw config_error("plateau: sequence split: " + text(chunk) + " of rank " + std::to_string(rank) +
                           " begins before position " + std::to_string(covered) + ", where a chunk of rank " +
                           std::to_string(before) + " ends; every position must be on one rank");
      if (chunk.first > covered) missing(covered, chunk.first);
      covered = chunk.end();
      before = rank;
    }
    if (covered != tokens_) missing(covered, tokens_);
  }
  [[noreturn]] void missing(index_t from, index_t to) const {
    throw config_error("plateau: sequence split: no rank has " + text({from, to - from}) +
                       " of a sequence of " + std::to_string(tokens_) +
                       " tokens; the shards must add up to it");
  }
  static std::string text(position_range r) {
    return std::to_string(r.rows) + " rows from position " + std::to_string(r.first);
  }

  index_t tokens_;
  std::vector<std::vector<position_range>> chunks_;
  std::vector<index_t> rows_;
};

} // namespace plateau::inline v0
