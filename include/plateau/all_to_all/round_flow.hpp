// SPDX-License-Identifier: Apache-2.0
//
// What one round moves while it is being made up: the rows of every (source, destination) pair, what is used
// of every cap, and how much a rank must move now so that the rounds after this one are enough. Sources and
// destinations are the two sides of a bipartite graph; each rank has its partners as bits, one set for those
// to whom more could go and one for those to whom something goes, so that a search takes 64 of them at a
// time. The sets are kept up with every change: a round does not pay for the pairs that it does not touch.
#pragma once

#include <plateau/all_to_all/rank_bits.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace plateau::inline v0::detail {

// The ranks as sources, or as destinations.
struct round_side {
  std::vector<index_t> cap, left; // a round's limit; what this round and later ones have to move
  std::vector<index_t> used;      // what this round moves
  std::vector<index_t> least;     // what it must move at least
  std::vector<index_t> most_full; // how many full rounds are a number of rows that fits 64 bits
  std::vector<rank_word> spare;   // (words) used < cap
  std::vector<rank_word> surplus; // (words) used > least
  std::vector<rank_word> more;    // (ranks x words) partners for whom rows would be left after this round
  std::vector<rank_word> moved;   // (ranks x words) partners with whom this round moves rows

  explicit round_side(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    for (auto* each : {&cap, &left, &used, &least, &most_full}) each->resize(n);
    for (auto* each : {&spare, &surplus}) each->resize(rank_words(ranks));
    for (auto* each : {&more, &moved}) each->resize(n * rank_words(ranks));
  }
};

class round_flow {
 public:
  explicit round_flow(int ranks)
      : ranks_(ranks), sources_(ranks), destinations_(ranks),
        left_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)), moved_(left_.size()) {}

  int ranks() const noexcept { return ranks_; }
  std::size_t words() const noexcept { return rank_words(ranks_); }
  round_side& sources() noexcept { return sources_; }
  round_side& destinations() noexcept { return destinations_; }
  const round_side& sources() const noexcept { return sources_; }
  const round_side& destinations() const noexcept { return destinations_; }

  // Of a pair; what is left includes what this round moves.
  index_t left(int source, int destination) const noexcept { return left_[pair(source, destination)]; }
  index_t moved(int source, int destination) const noexcept { return moved_[pair(source, destination)]; }
  // Of a rank of one of the sides: (words) bits of its partners.
  const rank_word* more(const round_side& side, int rank) const noexcept {
    return side.more.data() + row(rank);
  }
  const rank_word* moved(const round_side& side, int rank) const noexcept {
    return side.moved.data() + row(rank);
  }

  // A plan anew: clear(), then add_left() for every segment, then begin(). Caps and sums of the sides are the
  // caller's to set.
  void clear() noexcept {
    std::fill(left_.begin(), left_.end(), 0);
    std::fill(moved_.begin(), moved_.end(), 0);
  }
  void add_left(int destination, const index_t* rows_of_sources) noexcept {
    index_t* const left = left_.data() + pair(0, destination);
    for (int source = 0; source < ranks_; ++source) left[source] += rows_of_sources[source];
  }
  void begin() noexcept {
    for (round_side* side : {&sources_, &destinations_}) {
      std::fill(side->more.begin(), side->more.end(), 0);
      std::fill(side->moved.begin(), side->moved.end(), 0);
    }
    for (int destination = 0; destination < ranks_; ++destination) {
      rank_word* const more = destinations_.more.data() + row(destination);
      set_ranks_with_rows(more, left_.data() + pair(0, destination), static_cast<std::size_t>(ranks_));
      for_each_rank(more, words(),
                    [&](int source) { set_rank(sources_.more.data() + row(source), destination, true); });
    }
  }

  // An empty round, the first of `rounds_left`. Later rounds take full caps at the most: what they cannot
  // take is for now. If that many full rounds do not fit 64 bits, then they take everything.
  void open(index_t rounds_left) noexcept {
    const index_t later = rounds_left - 1;
    for (round_side* side : {&sources_, &destinations_})
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        side->used[r] = 0;
        side->least[r] =
            later > side->most_full[r] ? 0 : std::max<index_t>(0, side->left[r] - later * side->cap[r]);
        set_rank(side->spare.data(), rank, side->cap[r] > 0);
        set_rank(side->surplus.data(), rank, false);
      }
  }

  // Up to `rows` more from source to destination, as far as caps and what is left allow.
  void fill(int source, int destination, index_t rows) noexcept {
    const auto s = static_cast<std::size_t>(source), d = static_cast<std::size_t>(destination);
    rows = std::min({rows, left(source, destination) - moved(source, destination),
                     sources_.cap[s] - sources_.used[s], destinations_.cap[d] - destinations_.used[d]});
    if (rows <= 0) return;
    move(source, destination, rows);
    use(sources_, source, rows);
    use(destinations_, destination, rows);
  }
  // Its two halves, which paths need apart: a rank inside a path loses with one partner what it gains with
  // the next.
  void move(int source, int destination, index_t rows) noexcept {
    const std::size_t p = pair(source, destination);
    moved_[p] += rows;
    const bool more = moved_[p]<left_[p], moves = moved_[p]> 0;
    set_rank(sources_.more.data() + row(source), destination, more);
    set_rank(destinations_.more.data() + row(destination), source, more);
    set_moved(source, destination, moves);
  }
  void use(round_side& side, int rank, index_t rows) noexcept {
    const auto r = static_cast<std::size_t>(rank);
    side.used[r] += rows;
    set_rank(side.spare.data(), rank, side.used[r] < side.cap[r]);
    set_rank(side.surplus.data(), rank, side.used[r] > side.least[r]);
  }

  // Rows of the round are on their way: neither left, nor the round's any more. When all are: close().
  void settle(int source, int destination, index_t rows) noexcept {
    const std::size_t p = pair(source, destination);
    left_[p] -= rows;
    moved_[p] -= rows;
    if (moved_[p] == 0) set_moved(source, destination, false);
  }
  void close() noexcept {
    for (round_side* side : {&sources_, &destinations_})
      for (std::size_t r = 0; r < side->left.size(); ++r) side->left[r] -= side->used[r];
  }

 private:
  std::size_t pair(int source, int destination) const noexcept {
    return static_cast<std::size_t>(destination) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(source);
  }
  std::size_t row(int rank) const noexcept { return static_cast<std::size_t>(rank) * words(); }
  void set_moved(int source, int destination, bool moves) noexcept {
    set_rank(sources_.moved.data() + row(source), destination, moves);
    set_rank(destinations_.moved.data() + row(destination), source, moves);
  }

  int ranks_;
  round_side sources_, destinations_;
  std::vector<index_t> left_, moved_; // (destinations x sources)
};

} // namespace plateau::inline v0::detail
