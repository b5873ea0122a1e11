// SPDX-License-Identifier: Apache-2.0
//
// Who holds what when one side of a product goes around a ring of ranks. Each rank cuts its rows into
// sub-blocks of hop_rows. In round k the k-th sub-block of every rank visits all ranks: it begins at home and
// moves to the next higher rank, hop after hop, so that at hop h rank r holds what rank r - h owns. A rank
// with fewer sub-blocks, or none, takes part with empty ones. Integers only; every rank computes the same.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <span>
#include <string>

namespace plateau::inline v0 {

namespace detail {
// The largest extent, and the most elements of an array, that the arithmetic of a ring is asked for: bytes of
// a row, and of a few of such arrays, do not overflow.
inline constexpr index_t most_extent = index_t{1} << 48;
constexpr bool too_many_elements(index_t rows, index_t cols) {
  return cols > 0 && rows > (index_t{1} << 56) / cols;
}
} // namespace detail

// What a rank holds at one step, and of which rows of its owner: [first, first + rows).
struct ring_step {
  index_t round = 0;
  int hop = 0;
  int owner = 0;
  index_t first = 0;
  index_t rows = 0; // 0 for an empty sub-block

  friend constexpr bool operator==(const ring_step&, const ring_step&) = default;
};

class ring_schedule {
 public:
  // rows_of_rank: what each rank owns of the moving side; it must outlive the schedule. Throws config_error
  // for a negative count, no ranks, and hop_rows below 1.
  constexpr ring_schedule(std::span<const index_t> rows_of_rank, index_t hop_rows)
      : rows_(rows_of_rank), hop_rows_(hop_rows) {
    if (rows_.empty() || hop_rows < 1)
      throw config_error("plateau: ring_schedule: " + std::to_string(rows_.size()) +
                         " ranks and sub-blocks of " + std::to_string(hop_rows) +
                         " rows: both must be at least 1");
    for (const index_t n : rows_)
      if (n < 0) throw config_error("plateau: ring_schedule: a rank with " + std::to_string(n) + " rows");
  }

  constexpr int ranks() const { return static_cast<int>(rows_.size()); }
  constexpr index_t hop_rows() const { return hop_rows_; }
  constexpr index_t rows_of(int rank) const { return rows_[static_cast<std::size_t>(rank)]; }
  // The most sub-blocks that any rank has.
  constexpr index_t rounds() const {
    const index_t most = *std::max_element(rows_.begin(), rows_.end());
    return most / hop_rows_ + (most % hop_rows_ != 0 ? 1 : 0);
  }
  constexpr index_t steps() const { return rounds() * ranks(); }

  // What `rank` holds at step t of [0, steps()).
  constexpr ring_step at(int rank, index_t t) const {
    ring_step s;
    s.round = t / ranks();
    s.hop = static_cast<int>(t % ranks());
    s.owner = (rank - s.hop + ranks()) % ranks();
    return with_rows(s);
  }
  // The sub-block of `rank` itself in that round: what it begins the round with.
  constexpr ring_step own(int rank, index_t round) const {
    ring_step s;
    s.round = round;
    s.owner = rank;
    return with_rows(s);
  }
  constexpr int next(int rank) const { return (rank + 1) % ranks(); }
  constexpr int previous(int rank) const { return (rank + ranks() - 1) % ranks(); }

 private:
  constexpr ring_step with_rows(ring_step s) const {
    const index_t n = rows_of(s.owner);
    // Compared by number of blocks: round x hop_rows may overflow.
    const bool any = s.round <= (n - 1) / hop_rows_ && n > 0;
    s.first = any ? s.round * hop_rows_ : n;
    s.rows = any ? std::min(hop_rows_, n - s.first) : 0;
    return s;
  }

  std::span<const index_t> rows_;
  index_t hop_rows_;
};

// What moves: the activations with their state, or the shards of the weights.
enum class rotation : unsigned char { automatic, activations, weights };

// Bytes that a row of each side takes with it around the ring, of forward and backward together.
struct rotation_bytes {
  index_t rows = 0;      // of the side, on the rank that has most
  index_t row_bytes = 0; // there and, for what comes home, back

  constexpr double total() const { return static_cast<double>(rows) * static_cast<double>(row_bytes); }
};

// Activations where both move the same.
constexpr rotation cheaper_rotation(rotation asked, rotation_bytes activations, rotation_bytes weights) {
  if (asked != rotation::automatic) return asked;
  return activations.total() <= weights.total() ? rotation::activations : rotation::weights;
}

// The rows [first(r), first(r + 1)) of n that rank r owns where nobody says otherwise: n r / ranks, without
// overflow.
struct even_shards {
  index_t n = 0;
  int ranks = 1;

  constexpr index_t first(int rank) const { return n / ranks * rank + n % ranks * rank / ranks; }
  constexpr index_t count(int rank) const { return first(rank + 1) - first(rank); }
};

} // namespace plateau::inline v0
