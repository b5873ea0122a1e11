// SPDX-License-Identifier: Apache-2.0
//
// Which rows the dispatch moves in which round. In no round does a source send more than its cap, or a
// destination receive more than its own, so the memory for a round depends neither on the number of tokens,
// nor on where the router sends them, nor on the number of ranks. The rounds are as few as these caps allow.
// Host arithmetic on counts that every rank has: every rank computes the same plan, and no rank asks another.
#pragma once

#include <plateau/all_to_all/round_block.hpp>
#include <plateau/all_to_all/round_fill.hpp>
#include <plateau/all_to_all/round_flow.hpp>
#include <plateau/all_to_all/round_queues.hpp>
#include <plateau/all_to_all/round_repair.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// All memory is reserved by the constructor: about 32 bytes for each source of each segment, and 16 for each
// pair of ranks. No other function allocates, unless it throws. One thread at a time.
class round_plan {
 public:
  static constexpr int most_ranks = 1 << 15;
  static constexpr index_t most_segments_of_all = index_t{1} << 31;

  // config_error for sizes that cannot be. `most_segments` is for all ranks together.
  round_plan(int ranks, index_t most_segments)
      : most_segments_(checked(ranks, most_segments)), flow_(ranks), queues_(ranks, most_segments),
        fill_(ranks), repair_(ranks) {}

  // rank_of_segment (segments): who computes each segment, ascending. rows (segments x ranks): rows[g * ranks
  // + source] rows go from the source to segment g; those of a rank to itself count like any others. Caps
  // (ranks each) in rows of a round, more than 0 wherever there are rows. config_error otherwise, and for
  // rows of one rank whose sum does not fit; the plan before is then still there.
  void begin(std::span<const int> rank_of_segment, std::span<const index_t> rows,
             std::span<const index_t> send_caps, std::span<const index_t> receive_caps, round_policy policy) {
    check_sizes(rank_of_segment, rows, send_caps, receive_caps);
    sum_rows(rank_of_segment, rows);
    check_caps(flow_.sources(), send_caps, "sends", "send");
    check_caps(flow_.destinations(), receive_caps, "receives", "receive");
    rounds_ = done_ = 0;
    adopt(flow_.sources(), send_caps);
    adopt(flow_.destinations(), receive_caps);
    queues_.begin(rank_of_segment, rows, flow_);
    fill_.begin(policy, flow_);
  }

  // The fewest rounds that the caps allow, which is what the plan takes: that of the rank that needs most,
  // max over ranks of ceil(rows sent / send cap) and of ceil(rows received / receive cap). 0: nothing to
  // move.
  index_t rounds() const noexcept { return rounds_; }
  // How many of them next() has given.
  index_t done() const noexcept { return done_; }

  // Works out the next round; false when there is none.
  bool next() {
    if (done_ == rounds_) {
      queues_.drop_blocks();
      return false;
    }
    const index_t rounds_left = rounds_ - done_;
    flow_.open(rounds_left);
    fill_(flow_, queues_, rounds_left);
    repair_(flow_);
    queues_.take(flow_);
    ++done_;
    return true;
  }

  // What moves in the round that next() gave, sorted by segment, then source; valid until next() or begin().
  std::span<const round_block> blocks() const noexcept { return queues_.blocks(); }

 private:
  static index_t checked(int ranks, index_t most_segments) {
    if (ranks < 1 || ranks > most_ranks)
      refuse("made for " + std::to_string(ranks) + " ranks, where 1 to " + std::to_string(most_ranks) +
             " are possible");
    if (most_segments < 0 || most_segments > most_segments_of_all)
      refuse("made for " + std::to_string(most_segments) + " segments, where 0 to " +
             std::to_string(most_segments_of_all) + " are possible");
    return most_segments;
  }

  void check_sizes(std::span<const int> rank_of_segment, std::span<const index_t> rows,
                   std::span<const index_t> send_caps, std::span<const index_t> receive_caps) const {
    const std::size_t segments = rank_of_segment.size(), ranks = static_cast<std::size_t>(flow_.ranks());
    if (segments > static_cast<std::size_t>(most_segments_))
      refuse("given " + std::to_string(segments) + " segments, but made for at most " +
             std::to_string(most_segments_));
    if (rows.size() != segments * ranks)
      refuse_size("rows", rows.size(), segments * ranks,
                  std::to_string(segments) + " segments x " + std::to_string(ranks) + " ranks");
    if (send_caps.size() != ranks) refuse_size("send_caps", send_caps.size(), ranks, "one for each rank");
    if (receive_caps.size() != ranks)
      refuse_size("receive_caps", receive_caps.size(), ranks, "one for each rank");
    for (std::size_t g = 0; g < segments; ++g) {
      const int rank = rank_of_segment[g];
      if (rank < 0 || rank >= flow_.ranks())
        refuse("segment " + std::to_string(g) + " is on rank " + std::to_string(rank) +
               ", but ranks are 0 to " + std::to_string(flow_.ranks() - 1));
      if (g > 0 && rank < rank_of_segment[g - 1])
        refuse("segment " + std::to_string(g) + " is on rank " + std::to_string(rank) +
               ", the one before on rank " + std::to_string(rank_of_segment[g - 1]) +
               ": sort segments by rank");
    }
  }
  [[noreturn]] static void refuse_size(const char* what, std::size_t got, std::size_t expected,
                                       const std::string& why) {
    refuse(std::string(what) + " has " + std::to_string(got) + " numbers, where " + std::to_string(expected) +
           " are expected (" + why + ")");
  }

  // What each rank sends and receives, into `used`, which belongs to no round until one is opened: a plan
  // that is refused leaves the one before as it was.
  void sum_rows(std::span<const int> rank_of_segment, std::span<const index_t> rows) {
    std::vector<index_t>&sent = flow_.sources().used, &received = flow_.destinations().used;
    std::fill(sent.begin(), sent.end(), 0);
    std::fill(received.begin(), received.end(), 0);
    const index_t* next = rows.data();
    for (std::size_t g = 0; g < rank_of_segment.size(); ++g)
      for (std::size_t source = 0; source < sent.size(); ++source, ++next) {
        if (*next < 0)
          refuse("rank " + std::to_string(source) + " has " + std::to_string(*next) + " rows for segment " +
                 std::to_string(g) + ", expected 0 or more");
        add(sent[source], *next, "sends", source);
        add(received[static_cast<std::size_t>(rank_of_segment[g])], *next, "receives",
            static_cast<std::size_t>(rank_of_segment[g]));
      }
  }
  static void add(index_t& sum, index_t rows, const char* does, std::size_t rank) {
    if (rows > most_rows - sum)
      refuse("rank " + std::to_string(rank) + " " + does + " more than " + std::to_string(most_rows) +
             " rows, which 64 bits do not hold");
    sum += rows;
  }

  static void check_caps(const detail::round_side& side, std::span<const index_t> caps, const char* does,
                         const char* kind) {
    for (std::size_t rank = 0; rank < caps.size(); ++rank)
      if (side.used[rank] > 0 && caps[rank] <= 0)
        refuse("rank " + std::to_string(rank) + " " + does + " " + std::to_string(side.used[rank]) +
               " rows, but its " + kind + " cap is " + std::to_string(caps[rank]) + ": make it at least 1");
  }
  // Lengthens the plan where this side needs more rounds than the other.
  void adopt(detail::round_side& side, std::span<const index_t> caps) {
    for (std::size_t rank = 0; rank < caps.size(); ++rank) {
      const index_t rows = side.used[rank], cap = std::max<index_t>(0, caps[rank]);
      side.left[rank] = rows;
      side.cap[rank] = cap;
      side.most_full[rank] = cap > 0 ? most_rows / cap : most_rows;
      if (rows > 0) rounds_ = std::max(rounds_, rows / cap + (rows % cap != 0));
    }
  }
  [[noreturn]] static void refuse(const std::string& why) {
    throw config_error("plateau: round_plan: " + why);
  }

  static constexpr index_t most_rows = std::numeric_limits<index_t>::max();

  index_t most_segments_;
  index_t rounds_ = 0, done_ = 0;
  detail::round_flow flow_;
  detail::round_queues queues_;
  detail::round_fill fill_;
  detail::round_repair repair_;
};

} // namespace plateau::inline v0
