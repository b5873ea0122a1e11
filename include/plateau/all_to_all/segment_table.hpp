// SPDX-License-Identifier: Apache-2.0
//
// From who sends how much to which expert, and which pieces have moved, to segments: what one rank computes
// of one expert, and how much of that each source sends. A source's rows of an expert are cut in the order of
// the segments. Each rank computes as many of its own rows as it can, which cost no transfer; the rest is
// dealt in the order of the sources. Pure arithmetic; the same on every rank.
#pragma once

#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/all_to_all/round_block.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

class segment_table {
 public:
  // Reserves room for a segment of every expert and `most_pieces` moved ones.
  segment_table(int ranks, index_t experts, index_t most_pieces) : homes_{experts, ranks} {
    const auto most = static_cast<std::size_t>(experts + most_pieces);
    segments_.reserve(most);
    rank_of_.reserve(most);
    first_of_rank_.resize(static_cast<std::size_t>(ranks) + 1);
    first_in_group_.reserve(most);
    rows_.reserve(most * static_cast<std::size_t>(ranks));
    segment_of_home_.resize(static_cast<std::size_t>(experts));
    next_of_expert_.resize(static_cast<std::size_t>(experts));
    left_.resize(static_cast<std::size_t>(ranks));
    segment_of_piece_.reserve(static_cast<std::size_t>(most_pieces));
  }

  // The segments that have rows: by rank, at each rank its own experts in order, then those of others. `me`
  // is the source that first_in_group speaks of. Throws config_error when pieces and rows do not fit
  // together.
  void build(const dispatch_plan& plan, int me) {
    number_segments(plan);
    for (std::size_t p = 0, e = 0; e < segment_of_home_.size(); ++e) {
      const std::size_t first = p;
      while (p < plan.pieces.size() && plan.pieces[p].expert == static_cast<index_t>(e)) ++p;
      deal(plan, static_cast<index_t>(e), first, p);
    }
    find_first_in_group(me);
  }

  index_t size() const { return static_cast<index_t>(segments_.size()); }
  const segment& operator[](index_t i) const { return segments_[at(i)]; }
  bool foreign(index_t i) const { return homes_.home(segments_[at(i)].expert) != segments_[at(i)].rank; }
  // The segments of a rank are [first_of(rank), first_of(rank + 1)).
  index_t first_of(int rank) const { return first_of_rank_[static_cast<std::size_t>(rank)]; }
  std::span<const int> ranks() const { return rank_of_; } // (segments)
  std::span<const index_t> rows() const { return rows_; } // (segments, sources)
  index_t rows(index_t i, int source) const {
    return rows_[at(i) * static_cast<std::size_t>(homes_.ranks) + static_cast<std::size_t>(source)];
  }
  // Where the rows of a segment begin among the rows of its expert at the source `me`.
  index_t first_in_group(index_t i) const { return first_in_group_[at(i)]; }
  const expert_homes& homes() const { return homes_; }

 private:
  static constexpr index_t none = -1;
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

  void number_segments(const dispatch_plan& plan) {
    segments_.clear();
    rank_of_.clear();
    segment_of_piece_.assign(plan.pieces.size(), none);
    for (int rank = 0; rank < homes_.ranks; ++rank) {
      first_of_rank_[static_cast<std::size_t>(rank)] = size();
      for (index_t e = homes_.first(rank); e < homes_.first(rank + 1); ++e) {
        const index_t stays = all_rows(plan, e) - moved_rows(plan, e);
        if (stays < 0)
          throw config_error("plateau: dispatch: " + std::to_string(moved_rows(plan, e)) +
                             " rows of expert " + std::to_string(e) + " are moved, but it has " +
                             std::to_string(all_rows(plan, e)) + ": the plan is not one of this dispatch");
        segment_of_home_[at(e)] = stays > 0 ? add(e, rank) : none;
      }
      for (std::size_t p = 0; p < plan.pieces.size(); ++p)
        if (plan.pieces[p].rank == rank) segment_of_piece_[p] = add(plan.pieces[p].expert, rank);
    }
    first_of_rank_.back() = size();
    rows_.assign(segments_.size() * static_cast<std::size_t>(homes_.ranks), 0);
  }
  index_t add(index_t expert, int rank) {
    segments_.push_back({expert, rank});
    rank_of_.push_back(rank);
    return size() - 1;
  }
  static index_t all_rows(const dispatch_plan& plan, index_t e) {
    index_t sum = 0;
    for (int source = 0; source < plan.ranks; ++source) sum += plan.rows_of(source, e);
    return sum;
  }
  // Pieces are sorted by expert.
  static index_t moved_rows(const dispatch_plan& plan, index_t e) {
    index_t sum = 0;
    const auto before = [](const moved_piece& p, index_t expert) { return p.expert < expert; };
    for (auto p = std::lower_bound(plan.pieces.begin(), plan.pieces.end(), e, before);
         p != plan.pieces.end() && p->expert == e; ++p)
      sum += p->rows;
    return sum;
  }

  // Deals the rows of one expert to its segments; its pieces are [first, last).
  void deal(const dispatch_plan& plan, index_t e, std::size_t first, std::size_t last) {
    index_t moved = 0, all = 0;
    for (std::size_t p = first; p < last; ++p) moved += plan.pieces[p].rows;
    for (int source = 0; source < homes_.ranks; ++source) {
      left_[static_cast<std::size_t>(source)] = plan.rows_of(source, e);
      all += plan.rows_of(source, e);
    }
    const auto each = [&](auto f) { // in the order of the segments' ranks
      const int home = homes_.home(e);
      std::size_t p = first;
      for (; p < last && plan.pieces[p].rank < home; ++p) f(segment_of_piece_[p], plan.pieces[p].rows);
      if (all > moved) f(segment_of_home_[at(e)], all - moved);
      for (; p < last; ++p) f(segment_of_piece_[p], plan.pieces[p].rows);
    };
    each([&](index_t g, index_t wanted) { give(g, rank_of_[at(g)], wanted); });
    int source = 0;
    each([&](index_t g, index_t wanted) {
      for (int s = 0; s < homes_.ranks; ++s) wanted -= rows(g, s);
      while (wanted > 0) {
        wanted -= give(g, source, wanted);
        if (wanted > 0) ++source;
      }
    });
  }
  index_t give(index_t g, int source, index_t wanted) {
    index_t& left = left_[static_cast<std::size_t>(source)];
    const index_t given = std::min(left, wanted);
    left -= given;
    rows_[at(g) * static_cast<std::size_t>(homes_.ranks) + static_cast<std::size_t>(source)] += given;
    return given;
  }
  void find_first_in_group(int me) {
    // Segments of one expert come in the order of their ranks; the next one begins where this one ends.
    first_in_group_.assign(segments_.size(), 0);
    next_of_expert_.assign(segment_of_home_.size(), 0);
    for (index_t g = 0; g < size(); ++g) {
      index_t& next = next_of_expert_[at(segments_[at(g)].expert)];
      first_in_group_[at(g)] = next;
      next += rows(g, me);
    }
  }

  expert_homes homes_;
  std::vector<segment> segments_;
  std::vector<int> rank_of_;                              // (segments)
  std::vector<index_t> first_of_rank_;                    // (ranks + 1)
  std::vector<index_t> first_in_group_;                   // (segments)
  std::vector<index_t> rows_;                             // (segments, sources)
  std::vector<index_t> segment_of_home_, next_of_expert_; // (experts)
  std::vector<index_t> segment_of_piece_;                 // (pieces)
  std::vector<index_t> left_;                             // (sources)
};

} // namespace plateau::inline v0
