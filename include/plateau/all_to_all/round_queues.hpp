// SPDX-License-Identifier: Apache-2.0
//
// Which segments the rows of a (source, destination) pair are for: a queue of the destination's segments in
// ascending number. A round decides how many rows of a pair move, the queue which: always those at its front,
// so that a segment that was begun is finished before the next one, and where a row lies follows from counts
// alone.
#pragma once

#include <plateau/all_to_all/rank_bits.hpp>
#include <plateau/all_to_all/round_block.hpp>
#include <plateau/all_to_all/round_flow.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace plateau::inline v0::detail {

class round_queues {
 public:
  round_queues(int ranks, index_t most_segments)
      : ranks_(static_cast<std::size_t>(ranks)), words_(rank_words(ranks)), first_(ranks_ + 1),
        front_(ranks_), pending_(words_), left_(static_cast<std::size_t>(most_segments) * ranks_),
        live_(static_cast<std::size_t>(most_segments) * words_) {
    blocks_.reserve(left_.size()); // a block for each source of each segment is the most that a round has
  }

  // A plan anew: rank_of_segment (segments), ascending; rows (segments x ranks), which the flow gets too.
  void begin(std::span<const int> rank_of_segment, std::span<const index_t> rows, round_flow& flow) noexcept {
    blocks_.clear();
    std::size_t g = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      first_[rank] = front_[rank] = static_cast<index_t>(g);
      while (g < rank_of_segment.size() && static_cast<std::size_t>(rank_of_segment[g]) == rank) ++g;
    }
    first_[ranks_] = static_cast<index_t>(g);
    std::copy(rows.begin(), rows.end(), left_.begin());
    flow.clear();
    for (g = 0; g < rank_of_segment.size(); ++g) {
      flow.add_left(rank_of_segment[g], rows.data() + g * ranks_);
      set_ranks_with_rows(live_.data() + g * words_, rows.data() + g * ranks_, ranks_);
    }
    flow.begin();
  }

  // The segments of a rank in which rows may be left: [front, end).
  index_t front(int rank) const noexcept { return front_[static_cast<std::size_t>(rank)]; }
  index_t end(int rank) const noexcept { return first_[static_cast<std::size_t>(rank) + 1]; }
  // The sources that have rows left for a segment, and how many.
  const rank_word* live(index_t segment) const noexcept {
    return live_.data() + static_cast<std::size_t>(segment) * words_;
  }
  index_t left(index_t segment, int source) const noexcept {
    return left_[static_cast<std::size_t>(segment) * ranks_ + static_cast<std::size_t>(source)];
  }

  // Closes the round: its rows leave the queues and become blocks.
  void take(round_flow& flow) noexcept {
    blocks_.clear();
    for (int rank = 0; rank < static_cast<int>(ranks_); ++rank) {
      const rank_word* moved = flow.moved(flow.destinations(), rank);
      std::copy(moved, moved + words_, pending_.begin());
      index_t& front = front_[static_cast<std::size_t>(rank)];
      while (front < end(rank) && no_rank(live(front), words_)) ++front;
      for (index_t g = front; g < end(rank) && !no_rank(pending_.data(), words_); ++g) take(flow, rank, g);
    }
    flow.close();
  }
  void drop_blocks() noexcept { blocks_.clear(); }
  // Sorted by segment, then source.
  std::span<const round_block> blocks() const noexcept { return blocks_; }

 private:
  void take(round_flow& flow, int rank, index_t segment) noexcept {
    const std::size_t g = static_cast<std::size_t>(segment);
    rank_word* const live = live_.data() + g * words_;
    for (std::size_t w = 0; w < words_; ++w)
      for_each_rank_in(live[w] & pending_[w], w, [&](int source) {
        index_t& left = left_[g * ranks_ + static_cast<std::size_t>(source)];
        const index_t wanted = flow.moved(source, rank), rows = std::min(wanted, left);
        blocks_.push_back({segment, source, rows});
        flow.settle(source, rank, rows);
        left -= rows;
        if (left == 0) set_rank(live, source, false);
        if (rows == wanted) set_rank(pending_.data(), source, false);
      });
  }

  std::size_t ranks_, words_;
  std::vector<index_t> first_;     // (ranks + 1) the segments of a rank are [first, next first)
  std::vector<index_t> front_;     // (ranks) the first of them that may have rows left
  std::vector<rank_word> pending_; // (words) sources whose rows of the round are not all in blocks
  std::vector<index_t> left_;      // (segments x ranks) rows of each source
  std::vector<rank_word> live_;    // (segments x words) which of them are not 0
  std::vector<round_block> blocks_;
};

} // namespace plateau::inline v0::detail
