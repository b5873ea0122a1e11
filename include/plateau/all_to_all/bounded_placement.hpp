// SPDX-License-Identifier: Apache-2.0
//
// Least-loaded placement with a bound on how many foreign experts a rank holds, so that the memory for their
// weights is bounded too. A greedy pass asks whether every rank can be brought to a target: while some rank
// costs more, a piece of its largest expert moves to a rank with room and a free slot. The lowest target that
// can be reached is searched for, and of the plans for it the one with the fewest moves is kept.
//
// A rank never gets two pieces of one expert: a piece either ends its donor's need, or is all that is left of
// the expert, or fills the helper, and who is full is not asked again.
#pragma once

#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/all_to_all/moved_piece.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// Not copied: the memory reserved for the pieces would not be. One thread at a time.
class bounded_placement {
 public:
  // What kept the load from going down to the mean.
  enum class limit : unsigned char { none, piece, slots, room };

  bounded_placement(const expert_homes& homes, index_t foreign_experts, index_t weight_move_rows)
      : homes_(homes), foreign_experts_(std::min(foreign_experts, homes.experts)),
        weight_move_rows_(weight_move_rows), rows_(static_cast<std::size_t>(homes.experts)),
        left_(rows_.size()), native_(static_cast<std::size_t>(homes.ranks)), cost_(native_.size()),
        slots_(native_.size()) {
    // Each piece takes a slot; and fills a rank, ends a donor, or ends an expert.
    const std::size_t most = std::min(static_cast<std::size_t>(foreign_experts_) * native_.size(),
                                      2 * native_.size() + rows_.size());
    for (plan* p : {&best_, &candidate_, &attempt_}) p->pieces.reserve(most);
    donors_.reserve(native_.size());
  }
  bounded_placement(bounded_placement&&) = default;
  bounded_placement& operator=(bounded_placement&&) = default;

  // rows: (experts), native: (ranks) their sums by home. Pieces have `least_piece` rows or more, which is at
  // least 1; only where the cost would stay above the mean by more than that, they may also be all that is
  // left of a smaller expert. A cost of `tolerated` is good enough, and is used where it saves moves. Sorted;
  // the answer holds until the next call.
  std::span<const moved_piece> make(std::span<const index_t> rows, std::span<const index_t> native,
                                    index_t least_piece, index_t tolerated) {
    std::copy(rows.begin(), rows.end(), rows_.begin());
    std::copy(native.begin(), native.end(), native_.begin());
    least_piece_ = least_piece;
    stopped_by_ = limit::none;
    index_t total = 0;
    for (const index_t n : native_) total += n;
    goal_ = (total + homes_.ranks - 1) / homes_.ranks;
    // Differences of a four-thousandth of the mean are not worth more attempts.
    grain_ = goal_ / 4096;
    best_.pieces.clear();
    best_.cost = *std::max_element(native_.begin(), native_.end());
    most_moves_ = left_.size() * native_.size();
    rests_ = false;
    search();
    // An excess below one piece is not worth a transfer. A larger one is, even where experts are small.
    if (best_.cost > std::max(tolerated, goal_ + least_piece_)) {
      stopped_by_ = limit::none;
      rests_ = true;
      search();
    }
    if (tolerated > best_.cost && reach(tolerated) && candidate_.pieces.size() < best_.pieces.size()) {
      std::swap(best_, candidate_);
      most_moves_ = best_.pieces.size();
      search();
    }
    merge_pieces(best_.pieces);
    return best_.pieces;
  }
  // The most that a rank costs: its rows, and weight_move_rows for each foreign expert.
  index_t cost() const { return best_.cost; }
  index_t goal() const { return goal_; } // the mean, rounded up: no plan costs less
  limit stopped_by() const { return stopped_by_; }

 private:
  struct plan {
    std::vector<moved_piece> pieces;
    index_t cost = 0;
  };
  // How a helper and the size of its piece are chosen. Best: the least room that takes all of the donor's
  // excess; worst: the most room. Whole: the most room for all of the expert, even where the donor falls
  // below the target by that; it then helps others, as in the construction of alias tables, which needs no
  // more than one slot a rank where a rank is home to one expert.
  enum class fit : unsigned char { best, worst, whole };

  template <class Index> static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  // The best plan that needs at most most_moves_, from a target of the mean up to what has been reached.
  void search() {
    if (best_.cost <= goal_ || keep(goal_)) return;
    halve(goal_ + 1);
    // The greedy pass may fail at a target and succeed at a lower one.
    const index_t width = best_.cost - goal_;
    if (width <= grain_) return;
    index_t failed = goal_;
    for (index_t k = 1; k < 16; ++k) {
      const index_t target = goal_ + width / 16 * k + width % 16 * k / 16;
      if (target >= best_.cost) return;
      if (target > failed && keep(target)) return halve(failed + 1);
      failed = target;
    }
  }
  // Between `lowest` and the cost reached.
  void halve(index_t lowest) {
    while (best_.cost - lowest > grain_) {
      const index_t middle = lowest + (best_.cost - lowest) / 2;
      if (!keep(middle)) lowest = middle + 1;
    }
  }
  // Whether the target can be reached with at most most_moves_; the plan is kept if it is better.
  bool keep(index_t target) {
    if (!reach(target) || candidate_.pieces.size() > most_moves_) return false;
    if (candidate_.cost < best_.cost) std::swap(best_, candidate_);
    return true;
  }
  // Whether the target can be reached; the candidate is then the plan with the fewest moves.
  bool reach(index_t target) {
    bool reached = false;
    for (const fit by : {fit::best, fit::worst, fit::whole}) {
      if (!attempt(target, by)) continue;
      if (!reached || attempt_.pieces.size() < candidate_.pieces.size()) std::swap(candidate_, attempt_);
      reached = true;
    }
    return reached;
  }

  bool attempt(index_t target, fit by) {
    std::copy(native_.begin(), native_.end(), cost_.begin());
    std::copy(rows_.begin(), rows_.end(), left_.begin());
    std::fill(slots_.begin(), slots_.end(), foreign_experts_);
    attempt_.pieces.clear();
    donors_.clear();
    for (int r = 0; r < homes_.ranks; ++r)
      if (cost_[at(r)] > target) donors_.push_back({cost_[at(r)], -r});
    std::make_heap(donors_.begin(), donors_.end()); // the highest cost first, then the lowest rank
    while (!donors_.empty()) {
      std::pop_heap(donors_.begin(), donors_.end());
      const int donor = -donors_.back().second;
      donors_.pop_back();
      index_t& cost = cost_[at(donor)];
      const index_t expert = largest_left(donor);
      index_t rows = left_[at(expert)];
      const index_t least = rests_ ? std::min(least_piece_, rows) : least_piece_;
      if (rows < least) return fail(limit::piece);
      if (by != fit::whole) rows = std::min(rows, std::max(cost - target, least_piece_));
      const int helper = find_helper(target, rows, least, by);
      if (helper < 0) return fail(why_no_helper(target, least));
      rows = std::min(rows, room(helper, target));
      left_[at(expert)] -= rows;
      cost -= rows;
      cost_[at(helper)] += rows + weight_move_rows_;
      --slots_[at(helper)];
      attempt_.pieces.push_back({expert, helper, rows});
      if (cost > target) {
        donors_.push_back({cost, -donor});
        std::push_heap(donors_.begin(), donors_.end());
      }
    }
    attempt_.cost = *std::max_element(cost_.begin(), cost_.end());
    return true;
  }

  index_t room(int rank, index_t target) const { return target - cost_[at(rank)] - weight_move_rows_; }
  // Of a rank that is home to one or more.
  index_t largest_left(int rank) const {
    const index_t first = homes_.first(rank), end = homes_.first(rank + 1);
    index_t largest = first;
    for (index_t e = first + 1; e < end; ++e)
      if (left_[at(e)] > left_[at(largest)]) largest = e;
    return largest;
  }
  // -1 where nobody has a slot and room for a piece. A donor has no room.
  int find_helper(index_t target, index_t rows, index_t least, fit by) const {
    int most = -1, tightest = -1;
    index_t most_room = least - 1, tightest_room = 0;
    for (int r = 0; r < homes_.ranks; ++r) {
      if (slots_[at(r)] == 0) continue;
      const index_t here = room(r, target);
      if (here > most_room) most = r, most_room = here;
      if (here >= rows && (tightest < 0 || here < tightest_room)) tightest = r, tightest_room = here;
    }
    return by == fit::best && tightest >= 0 ? tightest : most;
  }
  limit why_no_helper(index_t target, index_t least) const {
    for (int r = 0; r < homes_.ranks; ++r)
      if (slots_[at(r)] == 0 && room(r, target) >= least) return limit::slots;
    return limit::room;
  }
  // The first attempt of a search is at the mean: what stops it is the reason.
  bool fail(limit by) {
    if (stopped_by_ == limit::none) stopped_by_ = by;
    return false;
  }

  expert_homes homes_;
  index_t foreign_experts_, weight_move_rows_;
  index_t least_piece_ = 1, goal_ = 0, grain_ = 0;
  std::size_t most_moves_ = 0;
  bool rests_ = false; // smaller pieces may move if they are all that is left of an expert
  limit stopped_by_ = limit::none;
  std::vector<index_t> rows_, left_;           // (experts) as given; not moved yet
  std::vector<index_t> native_, cost_, slots_; // (ranks) as given; so far; foreign experts still allowed
  std::vector<std::pair<index_t, int>> donors_;
  plan best_, candidate_, attempt_;
};

} // namespace plateau::inline v0
