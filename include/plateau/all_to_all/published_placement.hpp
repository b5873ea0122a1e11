// SPDX-License-Identifier: Apache-2.0
//
// Least-loaded placement as it was published, for comparison: experts one by one, the largest first; its home
// keeps what fits under the capacity, and the rest goes to whoever is least loaded at that moment. Nothing
// bounds how many foreign experts a rank ends up with, a rank may be forced far above the capacity where
// pieces would be small, and one expert may be sent to a rank twice: that is its nature, and it is kept. Only
// the result is merged, so that it can be used; how often that was needed is told.
#pragma once

#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/all_to_all/moved_piece.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace plateau::inline v0 {

// Not copied: the memory reserved for the pieces would not be. One thread at a time.
class published_placement {
 public:
  explicit published_placement(const expert_homes& homes)
      : homes_(homes), largest_first_(static_cast<std::size_t>(homes.experts)),
        pending_(static_cast<std::size_t>(homes.ranks)), taken_(pending_.size()) {
    // An expert fills a rank once, and what is left of it is forced on one.
    pieces_.reserve(largest_first_.size() * pending_.size());
  }
  published_placement(published_placement&&) = default;
  published_placement& operator=(published_placement&&) = default;

  // rows: (experts), at least 0. `capacity` is the load up to which a rank is filled, `least_piece` the
  // smallest piece worth a transfer, unless it is all that remains; at least 1. The answer holds until the
  // next call.
  std::span<const moved_piece> make(std::span<const index_t> rows, index_t capacity, index_t least_piece) {
    pieces_.clear();
    std::fill(taken_.begin(), taken_.end(), 0);
    for (std::size_t r = 0; r < pending_.size(); ++r) {
      pending_[r] = 0;
      const int rank = static_cast<int>(r);
      for (index_t e = homes_.first(rank); e < homes_.first(rank + 1); ++e) pending_[r] += rows[at(e)];
    }
    for (std::size_t i = 0; i < largest_first_.size(); ++i) largest_first_[i] = static_cast<index_t>(i);
    std::sort(largest_first_.begin(), largest_first_.end(), [&](index_t a, index_t b) {
      return rows[at(a)] != rows[at(b)] ? rows[at(a)] > rows[at(b)] : a < b;
    });
    for (const index_t e : largest_first_) {
      const int home = homes_.home(e);
      pending_[at(home)] -= rows[at(e)];
      // A home that was forced on rows of others may have no room at all.
      const index_t room = std::max<index_t>(0, capacity - load(home));
      const index_t kept = homes_.ranks == 1 ? rows[at(e)] : std::min(room, rows[at(e)]);
      taken_[at(home)] += kept;
      spill(e, home, rows[at(e)] - kept, capacity, least_piece);
    }
    duplicates_ = merge_pieces(pieces_);
    return pieces_;
  }
  std::span<const index_t> loads() const { return taken_; } // (ranks) rows after the last make
  // Pieces of an expert that a rank had been sent already.
  index_t duplicates() const { return duplicates_; }

 private:
  template <class Index> static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  // What the rank has been given, and what it is home to and has not been decided on.
  index_t load(int rank) const { return taken_[at(rank)] + pending_[at(rank)]; }

  void spill(index_t expert, int home, index_t left, index_t capacity, index_t least_piece) {
    while (left > 0) {
      int least = home == 0 ? 1 : 0;
      for (int r = least + 1; r < homes_.ranks; ++r)
        if (r != home && load(r) < load(least)) least = r;
      // Whoever has more load has less room: where the least loaded is refused, everyone is, and it is also
      // the one that is forced. Where all that is left fits, being forced is no different.
      const index_t room = capacity - load(least);
      const index_t rows = room < least_piece ? left : std::min(room, left);
      pieces_.push_back({expert, least, rows});
      taken_[at(least)] += rows;
      left -= rows;
    }
  }

  expert_homes homes_;
  std::vector<index_t> largest_first_;
  std::vector<index_t> pending_, taken_;
  std::vector<moved_piece> pieces_;
  index_t duplicates_ = 0;
};

} // namespace plateau::inline v0
