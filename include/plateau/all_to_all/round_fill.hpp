// SPDX-License-Identifier: Apache-2.0
//
// How a round is filled before its lower bounds are repaired. For the number of rounds any fill does that
// keeps the caps, so each policy fills for what it wants a round to be like.
#pragma once

#include <plateau/all_to_all/rank_bits.hpp>
#include <plateau/all_to_all/round_flow.hpp>
#include <plateau/all_to_all/round_queues.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plateau::inline v0 {

enum class round_policy : unsigned char {
  // A destination takes the rows of its first unfinished segment from all sources, then those of the next
  // one,
  // as its cap allows: in a round it has few groups with many rows each, which is what a GEMM wants. At 64
  // ranks with 5 segments each, over balanced and skewed counts, 1.0 to 1.6 times the fewest groups that caps
  // allow, where `diagonal` makes 1.0 to 5.0 times. Under skew, twice the cap for sending makes it better
  // still: by Zipf's law 1.15 times instead of 1.57.
  expert_first,
  // Pairs one after the other, as much of each as fits, in an order in which no rank waits for another: the
  // fewest blocks, hence the longest messages, and the cheapest plan where counts are even. Groups are as in
  // no order: a destination hears of all its experts in each round.
  diagonal,
  // The same share of every pair in every round: no round is fuller than another, where the others move ten
  // or thirty times the mean in the first round under strong skew, and an exchange takes as long every time.
  // Blocks are short; groups are large where counts are even, since all sources are then at the same segment,
  // and small under skew.
  smooth,
};

namespace detail {

class round_fill {
 public:
  explicit round_fill(int ranks)
      : spare_twice_(2 * rank_words(ranks) + 1), live_(static_cast<std::size_t>(ranks) * rank_words(ranks)) {}

  // Before the first round of a plan.
  void begin(round_policy policy, const round_flow& flow) noexcept {
    policy_ = policy;
    if (policy == round_policy::diagonal) find_pairs(flow);
  }

  // Fills an open round, the first of `rounds_left`.
  void operator()(round_flow& flow, const round_queues& queues, index_t rounds_left) noexcept {
    switch (policy_) {
    case round_policy::expert_first:
      return by_expert(flow, queues);
    case round_policy::diagonal:
      return by_diagonal(flow);
    case round_policy::smooth:
      return by_share(flow, rounds_left);
    }
  }

 private:
  // The first segment that has rows left of every destination, then the second of each, and so on.
  static void by_expert(round_flow& flow, const round_queues& queues) noexcept {
    bool any = true;
    for (index_t ordinal = 0; any; ++ordinal) {
      any = false;
      for (int rank = 0; rank < flow.ranks(); ++rank) {
        const index_t segment = queues.front(rank) + ordinal;
        if (segment >= queues.end(rank) || !has_spare(flow, rank)) continue;
        any = true;
        fill_segment(flow, queues, rank, segment);
      }
    }
  }
  // Sources from the destination's own number upwards, and then from 0. Were the first ones the same for
  // every destination, the first destinations would use up their caps, and the rest would be made of repairs:
  // a quarter more groups where counts are even, and the round takes twice as long.
  static void fill_segment(round_flow& flow, const round_queues& queues, int rank, index_t segment) noexcept {
    const rank_word* const live = queues.live(segment);
    const std::vector<rank_word>& spare = flow.sources().spare;
    const std::size_t own = static_cast<std::size_t>(rank / rank_word_bits);
    const rank_word upwards = ~rank_word{0} << rank % rank_word_bits;
    for (std::size_t k = 0; k <= flow.words() && has_spare(flow, rank); ++k) {
      const std::size_t w = (own + k) % flow.words();
      const rank_word part = k == 0 ? upwards : k == flow.words() ? ~upwards : ~rank_word{0};
      for_each_rank_in(live[w] & spare[w] & part, w,
                       [&](int source) { flow.fill(source, rank, queues.left(segment, source)); });
    }
  }
  static bool has_spare(const round_flow& flow, int destination) noexcept {
    return has_rank(flow.destinations().spare.data(), destination);
  }

  // Pairs (i, i), then (i, i + 1), and so on. Every rank is in a diagonal once as a source and once as a
  // destination, so the pairs with room on both sides are known before the first of them is filled.
  void by_diagonal(round_flow& flow) noexcept {
    const std::vector<rank_word>& spare = flow.sources().spare;
    for (int shift = 0; shift < flow.ranks(); ++shift) {
      if (no_rank(spare.data(), flow.words())) return;
      set_ranks_twice(spare_twice_.data(), flow.destinations().spare.data(), flow.ranks());
      rank_word* const live = live_.data() + static_cast<std::size_t>(shift) * flow.words();
      for (std::size_t w = 0; w < flow.words(); ++w) {
        const rank_word spare_destinations =
            ranks_from(spare_twice_.data(), static_cast<std::size_t>(shift) + w * rank_word_bits);
        for_each_rank_in(live[w] & spare[w] & spare_destinations, w, [&](int source) {
          const int destination = ring(source + shift, flow.ranks());
          flow.fill(source, destination, flow.left(source, destination));
          if (flow.left(source, destination) == 0) set_rank(live, source, false);
        });
      }
    }
  }
  void find_pairs(const round_flow& flow) noexcept {
    std::fill(live_.begin(), live_.end(), 0);
    for (int shift = 0; shift < flow.ranks(); ++shift)
      for (int source = 0; source < flow.ranks(); ++source)
        if (flow.left(source, ring(source + shift, flow.ranks())) > 0)
          set_rank(live_.data() + static_cast<std::size_t>(shift) * flow.words(), source, true);
  }
  static int ring(int rank, int ranks) noexcept { return rank < ranks ? rank : rank - ranks; }

  // Of each pair its share of what is left. Shares are not whole: they lie end to end on a line, source by
  // source, and a pair gets the whole numbers under its share, so that all shares of a source make its own,
  // rounded. The lines of the sources start at different places, or all fractions of a destination would
  // round up in the same round. Unsigned: a sum of rows and a number of rounds may need all 64 bits.
  static void by_share(round_flow& flow, index_t rounds_left) noexcept {
    const index_t ranks = flow.ranks();
    const auto rounds = static_cast<std::uint64_t>(rounds_left);
    for (int source = 0; source < flow.ranks(); ++source) {
      auto at =
          static_cast<std::uint64_t>(rounds_left / ranks * source + rounds_left % ranks * source / ranks);
      index_t given = 0;
      for_each_rank(flow.more(flow.sources(), source), flow.words(), [&](int destination) {
        at += static_cast<std::uint64_t>(flow.left(source, destination));
        const auto under = static_cast<index_t>(at / rounds);
        flow.fill(source, destination, under - given);
        given = under;
      });
    }
  }

  round_policy policy_ = round_policy::diagonal;
  std::vector<rank_word> spare_twice_;
  std::vector<rank_word> live_; // (diagonals x words) the sources of pairs that may have rows left
};

} // namespace detail
} // namespace plateau::inline v0
