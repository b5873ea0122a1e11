// SPDX-License-Identifier: Apache-2.0
//
// Where a fill has left a rank below what it must move in this round, rows are shifted along alternating
// paths: one pair moves more, the next of the same rank moves less, and so on, until a path ends at a rank of
// the other side that has room, or at one of the same side that moves more than it must. Such a path exists
// for as long as a rank falls short: a round that takes the same fraction of every pair keeps all bounds, so
// one in whole rows does too, and the difference between that and any fill is made of such paths. The
// shortest is taken, for the most rows that it allows. Ranks inside a path keep what they have, and its end
// stays within its bounds, so no repair undoes another.
#pragma once

#include <plateau/all_to_all/rank_bits.hpp>
#include <plateau/all_to_all/round_flow.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <vector>

namespace plateau::inline v0::detail {

class round_repair {
 public:
  explicit round_repair(int ranks)
      : from_same_(static_cast<std::size_t>(ranks)), from_other_(static_cast<std::size_t>(ranks)),
        waiting_(2 * static_cast<std::size_t>(ranks)), same_unseen_(rank_words(ranks)),
        other_unseen_(rank_words(ranks)) {}

  // Afterwards every rank moves at least what it must.
  void operator()(round_flow& flow) {
    lift(flow, flow.sources(), flow.destinations(), true);
    lift(flow, flow.destinations(), flow.sources(), false);
  }

 private:
  struct vertex {
    int rank = -1;
    bool same_side = false; // as the rank that falls short
  };

  void lift(round_flow& flow, round_side& same, round_side& other, bool from_source) {
    for (int rank = 0; rank < flow.ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      while (same.used[r] < same.least[r]) {
        const vertex end = search(flow, same, other, rank);
        if (end.rank < 0)
          throw error("plateau: round_plan: rank " + std::to_string(rank) + " " +
                      (from_source ? "sends " : "receives ") + std::to_string(same.used[r]) +
                      " rows of a round, has to move " + std::to_string(same.least[r]) +
                      ", and no path is found: a fault of the plan; please report the counts and caps");
        shift(flow, same, other, from_source, rank, end);
      }
    }
  }

  // Breadth first. From a rank of the same side to partners with whom it could move more, from one of the
  // other side to partners with whom it could move less.
  vertex search(const round_flow& flow, const round_side& same, const round_side& other, int start) {
    std::fill(same_unseen_.begin(), same_unseen_.end(), ~rank_word{0});
    std::fill(other_unseen_.begin(), other_unseen_.end(), ~rank_word{0});
    set_rank(same_unseen_.data(), start, false);
    std::size_t first = 0, last = 0;
    waiting_[last++] = {start, true};
    while (first < last) {
      const vertex at = waiting_[first++];
      const rank_word* const next = at.same_side ? flow.more(same, at.rank) : flow.moved(other, at.rank);
      const std::vector<rank_word>& ends = at.same_side ? other.spare : same.surplus;
      std::vector<rank_word>& unseen = at.same_side ? other_unseen_ : same_unseen_;
      std::vector<int>& from = at.same_side ? from_same_ : from_other_;
      for (std::size_t w = 0; w < flow.words(); ++w) {
        const rank_word found = next[w] & unseen[w];
        if (const rank_word hits = found & ends[w]; hits != 0) {
          const int rank = static_cast<int>(w) * rank_word_bits + std::countr_zero(hits);
          from[static_cast<std::size_t>(rank)] = at.rank;
          return {rank, !at.same_side};
        }
        unseen[w] &= ~found;
        for_each_rank_in(found, w, [&](int rank) {
          from[static_cast<std::size_t>(rank)] = at.rank;
          waiting_[last++] = {rank, !at.same_side};
        });
      }
    }
    return {};
  }

  // The most rows that the path allows and its start needs, along it.
  void shift(round_flow& flow, round_side& same, round_side& other, bool from_source, int start, vertex end) {
    const auto s = static_cast<std::size_t>(start), e = static_cast<std::size_t>(end.rank);
    index_t rows = std::min(same.least[s] - same.used[s],
                            end.same_side ? same.used[e] - same.least[e] : other.cap[e] - other.used[e]);
    walk(from_source, start, end, [&](int source, int destination, bool gains) {
      const index_t moved = flow.moved(source, destination);
      rows = std::min(rows, gains ? flow.left(source, destination) - moved : moved);
    });
    walk(from_source, start, end, [&](int source, int destination, bool gains) {
      flow.move(source, destination, gains ? rows : -rows);
    });
    flow.use(same, start, rows);
    if (end.same_side)
      flow.use(same, end.rank, -rows);
    else
      flow.use(other, end.rank, rows);
  }

  // f(source, destination, whether the pair gains rows) for each pair of the path, from its end.
  template <class F> void walk(bool from_source, int start, vertex at, F&& f) const {
    while (!at.same_side || at.rank != start) {
      const int before = (at.same_side ? from_other_ : from_same_)[static_cast<std::size_t>(at.rank)];
      const int of_same = at.same_side ? at.rank : before, of_other = at.same_side ? before : at.rank;
      f(from_source ? of_same : of_other, from_source ? of_other : of_same, !at.same_side);
      at = {before, !at.same_side};
    }
  }

  std::vector<int> from_same_;  // from which rank of the same side the search came to one of the other
  std::vector<int> from_other_; // and the other way round
  std::vector<vertex> waiting_;
  std::vector<rank_word> same_unseen_, other_unseen_;
};

} // namespace plateau::inline v0::detail
