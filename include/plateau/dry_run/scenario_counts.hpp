// SPDX-License-Identifier: Apache-2.0
//
// Routing as somebody counted it: the rows that every rank sent to every expert, by step and layer. Which
// token goes where is not in the counts, so it is chosen: with the rows of a rank laid out expert by expert,
// row j is slot j / n of token j mod n, n being the rank's tokens. The experts of a token are then distinct
// whenever no expert gets more than n rows.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

struct counts_table {
  std::int64_t steps = 0, layers = 0, ranks = 0, experts = 0;
  std::vector<std::int64_t> rows; // (steps, layers, ranks, experts)
};

namespace routing {

// Steps beyond the recorded ones begin again with the first.
struct recorded_counts {
  std::shared_ptr<const counts_table> table;
};

} // namespace routing

namespace detail {

// Immutable; any thread may ask.
class recorded_law {
 public:
  // Throws config_error when the counts cannot be those of top_k routes a token.
  recorded_law(std::shared_ptr<const counts_table> table, std::int64_t top_k)
      : table_(std::move(table)), top_k_(top_k) {
    if (table_ == nullptr) throw config_error("recorded_counts.table: is missing; expected counts");
    const counts_table& t = *table_;
    if (t.steps < 1 || t.layers < 0 || t.ranks < 1 || t.experts < 1 ||
        static_cast<std::int64_t>(t.rows.size()) != t.steps * t.layers * t.ranks * t.experts)
      throw config_error("recorded_counts.rows: " + std::to_string(t.rows.size()) + " numbers; expected " +
                         std::to_string(t.steps) + " steps x " + std::to_string(t.layers) + " layers x " +
                         std::to_string(t.ranks) + " ranks x " + std::to_string(t.experts) + " experts");
    ends_.reserve(t.rows.size());
    for (std::size_t block = 0; block * experts() < t.rows.size(); ++block) add_block(block);
  }

  std::int64_t expert(std::int64_t step, std::int64_t layer, std::int64_t rank, std::int64_t token,
                      std::int64_t slot) const {
    const auto ends = block_of(step, layer, rank);
    const std::int64_t n = ends.back() / top_k_;
    check_range(n, step, layer, rank, token, 1);
    return std::upper_bound(ends.begin(), ends.end(), slot * n + token) - ends.begin();
  }

  // Adds the routes of the rank's tokens [first, first + tokens) to `rows` (experts).
  void add_rows(std::int64_t step, std::int64_t layer, std::int64_t rank, std::int64_t first,
                std::int64_t tokens, std::span<std::int64_t> rows) const {
    if (tokens == 0) return;
    const auto ends = block_of(step, layer, rank);
    const std::int64_t n = ends.back() / top_k_;
    check_range(n, step, layer, rank, first, tokens);
    for (std::int64_t slot = 0; slot < top_k_; ++slot) {
      std::int64_t at = slot * n + first;
      const std::int64_t end = at + tokens;
      auto e = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
      for (; at < end; ++e) {
        const std::int64_t to = std::min(end, ends[e]);
        rows[e] += to - at;
        at = to;
      }
    }
  }

  // Throws config_error unless rank `rank` has `tokens` tokens in every recorded step.
  void check_tokens(std::int64_t rank, std::int64_t tokens) const {
    if (rank < 0 || rank >= table_->ranks)
      throw config_error("recorded_counts.ranks: " + std::to_string(table_->ranks) +
                         "; expected counts of rank " + std::to_string(rank) + " too");
    for (std::int64_t step = 0; step < table_->steps; ++step)
      for (std::int64_t layer = 0; layer < table_->layers; ++layer)
        if (const std::int64_t found = block_of(step, layer, rank).back(); found != tokens * top_k_)
          throw config_error(name(step, layer, rank) + ": the rows sum to " + std::to_string(found) +
                             "; expected " + std::to_string(tokens * top_k_) + ", " + std::to_string(tokens) +
                             " tokens x top-k " + std::to_string(top_k_));
  }

  // Why the experts of some token are not distinct; empty when all are.
  const std::string& repeats() const { return repeats_; }
  const counts_table& table() const { return *table_; }

 private:
  std::size_t experts() const { return static_cast<std::size_t>(table_->experts); }

  static std::string name(std::int64_t step, std::int64_t layer, std::int64_t rank) {
    return "recorded_counts.rows: step " + std::to_string(step) + ", layer " + std::to_string(layer) +
           ", rank " + std::to_string(rank);
  }
  std::string name(std::size_t block) const {
    const auto b = static_cast<std::int64_t>(block);
    return name(b / table_->ranks / table_->layers, b / table_->ranks % table_->layers, b % table_->ranks);
  }

  void add_block(std::size_t block) {
    const auto rows = std::span(table_->rows).subspan(block * experts(), experts());
    std::int64_t sum = 0;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      constexpr std::int64_t most = std::int64_t{1} << 48;
      if (rows[e] < 0 || rows[e] > most)
        throw config_error(name(block) + ", expert " + std::to_string(e) + ": " + std::to_string(rows[e]) +
                           " rows; expected 0 to 2^48");
      ends_.push_back(sum += rows[e]);
      if (sum > most)
        throw config_error(name(block) + ": the rows sum to more than 2^48 up to expert " +
                           std::to_string(e));
    }
    if (sum % top_k_ != 0)
      throw config_error(name(block) + ": the rows sum to " + std::to_string(sum) +
                         "; expected a multiple of top-k " + std::to_string(top_k_));
    for (std::size_t e = 0; repeats_.empty() && e < rows.size(); ++e)
      if (rows[e] > sum / top_k_)
        repeats_ = name(block).substr(std::string("recorded_counts.rows: ").size()) + ": " +
                   std::to_string(rows[e]) + " rows of " + std::to_string(sum / top_k_) +
                   " tokens go to expert " + std::to_string(e);
  }

  std::span<const std::int64_t> block_of(std::int64_t step, std::int64_t layer, std::int64_t rank) const {
    const counts_table& t = *table_;
    if (layer < 0 || layer >= t.layers || rank < 0 || rank >= t.ranks)
      throw config_error("recorded_counts: layer " + std::to_string(layer) + " of rank " +
                         std::to_string(rank) + " is not in the counts of " + std::to_string(t.layers) +
                         " layers and " + std::to_string(t.ranks) + " ranks");
    const std::int64_t block = ((step % t.steps) * t.layers + layer) * t.ranks + rank;
    return std::span(ends_).subspan(static_cast<std::size_t>(block) * experts(), experts());
  }

  static void check_range(std::int64_t n, std::int64_t step, std::int64_t layer, std::int64_t rank,
                          std::int64_t first, std::int64_t tokens) {
    if (first < 0 || first + tokens > n)
      throw config_error(name(step, layer, rank) + ": " + std::to_string(n) + " tokens; asked for " +
                         std::to_string(first) + " to " + std::to_string(first + tokens - 1));
  }

  std::shared_ptr<const counts_table> table_;
  std::int64_t top_k_;
  std::vector<std::int64_t> ends_; // of rows, summed up within each block
  std::string repeats_;
};

} // namespace detail

} // namespace plateau::inline v0
