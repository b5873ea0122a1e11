// SPDX-License-Identifier: Apache-2.0
//
// Which rank computes how many rows of which expert in this step. It follows from the counts of rows alone,
// in whole numbers, so that every rank comes to the same answer without asking the others. A planner says
// what it did and what kept it from doing more.
#pragma once

#include <plateau/all_to_all/bounded_placement.hpp>
#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/all_to_all/moved_piece.hpp>
#include <plateau/all_to_all/published_placement.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

enum class placement_policy : unsigned char {
  native,                // every expert is computed at home
  bounded_least_loaded,  // bounded_placement.hpp
  published_least_loaded // published_placement.hpp, for comparison: knows no bound on foreign experts
};

struct placement_options {
  placement_policy policy = placement_policy::bounded_least_loaded;
  // The most experts of other ranks that a rank holds at a time; at least 0. More than there are is no error.
  index_t foreign_experts = 2;
  // Pieces below it are not worth the transfer of weights; at least 1. The bounded policy lowers it to a
  // quarter of the mean load where that is less, and moves smaller experts whole where the largest load would
  // stay above the mean by more than it.
  index_t least_piece_rows = 1024;
  // What holding a foreign expert costs, in rows that could be computed meanwhile; bounded policy only.
  index_t weight_move_rows = 0;
  // The load that is good enough, in millionths of the mean, from 10^6 to 10^12: fewer moves at a higher one.
  // Where no rank has more without moving, nothing moves.
  index_t capacity_millionths = 1'000'000;
  // Where the largest load without moving is at most this, in millionths of the mean, nothing moves; from 0.
  index_t threshold_millionths = 1'000'000;
};

// All memory is reserved at construction. Not copied; one thread at a time.
class placement_plan {
 public:
  // The rows of all experts together, at most.
  static constexpr index_t most_rows = index_t{1} << 60;

  // Experts live where expert_homes{experts, ranks} says. config_error: no ranks, no experts, or an option
  // outside its range.
  placement_plan(int ranks, index_t experts, const placement_options& options)
      : options_(checked(ranks, experts, options)), homes_{experts, ranks},
        native_(static_cast<std::size_t>(ranks)), loads_(native_.size()) {
    using policy = placement_policy;
    if (options.policy == policy::bounded_least_loaded)
      bounded_.emplace(homes_, options.foreign_experts, std::min(options.weight_move_rows, most_rows));
    if (options.policy == policy::published_least_loaded) published_.emplace(homes_);
    say("no plan has been made yet");
  }
  placement_plan(placement_plan&&) = default;
  placement_plan& operator=(placement_plan&&) = default;

  // rows_of_expert: (experts), the rows that all ranks together have for each. What moves, sorted by expert
  // and then by rank, each pair once; the rest stays home. It holds until the next call. config_error, and
  // the plan before it still holds: not one count for each expert, a negative one, more than most_rows.
  std::span<const moved_piece> make(std::span<const index_t> rows_of_expert) {
    const index_t total = checked_total(rows_of_expert);
    moves_ = {};
    duplicates_ = 0;
    for (int r = 0; r < homes_.ranks; ++r) {
      index_t& native = native_[at(r)] = 0;
      for (index_t e = homes_.first(r); e < homes_.first(r + 1); ++e) native += rows_of_expert[at(e)];
    }
    native_load_ = largest_load_ = *std::max_element(native_.begin(), native_.end());
    loads_ = native_;
    mean_ = total / homes_.ranks;
    least_piece_ = std::max<index_t>(1, std::min(options_.least_piece_rows, mean_ / 4));
    tolerated_ = scaled(total, options_.capacity_millionths) / homes_.ranks;
    if (stays_native(total)) return moves_;
    if (published_)
      plan_published(rows_of_expert);
    else
      plan_bounded(rows_of_expert);
    largest_load_ = *std::max_element(loads_.begin(), loads_.end());
    explain();
    return moves_;
  }

  // Of the last make:
  std::span<const moved_piece> moves() const { return moves_; }
  std::span<const index_t> loads() const { return loads_; } // (ranks) rows that each rank computes
  index_t native_load() const { return native_load_; }      // the largest if nothing moved
  index_t largest_load() const { return largest_load_; }
  index_t least_piece() const { return least_piece_; } // of the bounded policy, after it has yielded
  // Pieces that the published policy had sent to a rank that had one of the same expert: merged in moves().
  index_t duplicates() const { return duplicates_; }
  // What was done and what kept it from doing more; for people.
  const char* reason() const { return reason_; }

  const placement_options& options() const { return options_; }
  const expert_homes& homes() const { return homes_; }

 private:
  static constexpr index_t most_millionths = 1'000'000'000'000;
  using ll = long long;

  template <class Index> static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  template <class... T> void say(const char* format, T... values) {
    if constexpr (sizeof...(T) == 0)
      std::snprintf(reason_, sizeof reason_, "%s", format);
    else
      std::snprintf(reason_, sizeof reason_, format, values...);
  }

  static const placement_options& checked(int ranks, index_t experts, const placement_options& o) {
    const auto expect = [](bool holds, const char* what, index_t given, const char* expected) {
      if (!holds)
        throw config_error("plateau: placement_plan: " + std::string(what) + " is " + std::to_string(given) +
                           ", expected " + expected);
    };
    expect(ranks >= 1, "the number of ranks", ranks, "1 or more");
    expect(experts >= 1, "the number of experts", experts, "1 or more");
    expect(o.policy <= placement_policy::published_least_loaded, "policy", static_cast<index_t>(o.policy),
           "one of placement_policy");
    expect(o.foreign_experts >= 0, "foreign_experts", o.foreign_experts, "0 or more");
    expect(o.least_piece_rows >= 1, "least_piece_rows", o.least_piece_rows,
           "1 or more: with 1, a piece of any size may move");
    expect(o.weight_move_rows >= 0, "weight_move_rows", o.weight_move_rows, "0 or more");
    expect(o.capacity_millionths >= 1'000'000 && o.capacity_millionths <= most_millionths,
           "capacity_millionths", o.capacity_millionths,
           "1000000 (the mean, below which no plan can go) to 1000000000000");
    expect(o.threshold_millionths >= 0 && o.threshold_millionths <= most_millionths, "threshold_millionths",
           o.threshold_millionths, "0 to 1000000000000");
    return o;
  }
  index_t checked_total(std::span<const index_t> rows) const {
    if (static_cast<index_t>(rows.size()) != homes_.experts)
      throw config_error("plateau: placement_plan: got the rows of " + std::to_string(rows.size()) +
                         " experts, expected those of all " + std::to_string(homes_.experts));
    index_t total = 0;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      if (rows[e] < 0)
        throw config_error("plateau: placement_plan: expert " + std::to_string(e) + " has " +
                           std::to_string(rows[e]) + " rows, expected 0 or more");
      if (rows[e] > most_rows - total)
        throw config_error("plateau: placement_plan: up to expert " + std::to_string(e) + " there are " +
                           std::to_string(total) + " + " + std::to_string(rows[e]) +
                           " rows, expected at most " + std::to_string(most_rows) + " in all");
      total += rows[e];
    }
    return total;
  }

  bool stays_native(index_t total) {
    const index_t threshold = scaled(total, options_.threshold_millionths) / homes_.ranks;
    if (options_.policy == placement_policy::native)
      say("the policy is native: nothing moves");
    else if (homes_.ranks == 1)
      say("there is one rank: nothing to move to");
    else if (total == 0)
      say("there are no rows");
    else if (native_load_ <= std::max(threshold, tolerated_))
      say("balanced enough: the largest native load, %lld rows, is at most %lld", ll(native_load_),
          ll(std::max(threshold, tolerated_)));
    else if (bounded_ && options_.foreign_experts == 0)
      say("no rank may hold a foreign expert (foreign_experts is 0): the largest load stays %lld rows, the "
          "mean is %lld",
          ll(native_load_), ll(mean_));
    else
      return false;
    return true;
  }

  void plan_published(std::span<const index_t> rows) {
    moves_ = published_->make(rows, tolerated_, options_.least_piece_rows);
    duplicates_ = published_->duplicates();
    std::copy(published_->loads().begin(), published_->loads().end(), loads_.begin());
  }
  void plan_bounded(std::span<const index_t> rows) {
    moves_ = bounded_->make(rows, native_, least_piece_, tolerated_);
    for (const moved_piece& piece : moves_) {
      loads_[at(homes_.home(piece.expert))] -= piece.rows;
      loads_[at(piece.rank)] += piece.rows;
    }
  }

  void explain() {
    const int n =
        std::snprintf(reason_, sizeof reason_,
                      "pieces moved: %lld, largest load: %lld rows, without moving: %lld, mean: %lld",
                      ll(moves_.size()), ll(largest_load_), ll(native_load_), ll(mean_));
    char* rest = reason_ + n;
    const std::size_t left = sizeof reason_ - at(n);
    if (duplicates_ > 0)
      std::snprintf(rest, left, "; weights sent twice to one rank: %lld, merged", ll(duplicates_));
    using limit = bounded_placement::limit;
    if (!bounded_ || bounded_->cost() <= std::max(tolerated_, bounded_->goal())) return;
    switch (bounded_->stopped_by()) {
    case limit::none:
      return;
    case limit::piece:
      std::snprintf(rest, left, "; at the mean, pieces would be smaller than %lld rows (least_piece_rows)",
                    ll(least_piece_));
      return;
    case limit::slots:
      std::snprintf(rest, left,
                    "; at the mean, a rank would hold more than %lld foreign experts (foreign_experts)",
                    ll(options_.foreign_experts));
      return;
    case limit::room:
      std::snprintf(
          rest, left,
          "; at the mean, no rank has room for %lld more rows (least_piece_rows) and the %lld that weights "
          "cost (weight_move_rows)",
          ll(least_piece_), ll(options_.weight_move_rows));
      return;
    }
  }

  placement_options options_;
  expert_homes homes_;
  std::vector<index_t> native_, loads_;
  std::optional<bounded_placement> bounded_;
  std::optional<published_placement> published_;
  std::span<const moved_piece> moves_;
  index_t native_load_ = 0, largest_load_ = 0, mean_ = 0, least_piece_ = 1, tolerated_ = 0, duplicates_ = 0;
  char reason_[320] = "";
};

} // namespace plateau::inline v0
