// SPDX-License-Identifier: Apache-2.0
//
// How many of a step's sequences each rank gets. Whole runs of consecutive sequences in rank order, so that a
// share is two numbers; every rank computes it alone and all agree. Plain integers: forced real runs and dry
// runs deal by the same ones.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <cstdint>
#include <string>
#include <variant>

namespace plateau::inline v0 {

namespace routing {

// As even as it goes.
struct even_shares {};
// Rank r gets in proportion to r + 1: the last one nearly twice the even share, the first next to nothing.
struct ragged {};
// One rank gets nothing, the others even shares.
struct zero_rank {
  std::int64_t rank = 0;
};

} // namespace routing

using share_form = std::variant<routing::even_shares, routing::ragged, routing::zero_rank>;

// Of a batch, [first, last).
struct share_range {
  std::int64_t first = 0, last = 0;

  std::int64_t size() const { return last - first; }
  friend bool operator==(const share_range&, const share_range&) = default;
};

// Throws config_error when `form` gives nobody of `ranks` anything, or names a rank that does not exist.
inline void check_shares(const share_form& form, std::int64_t ranks) {
  if (ranks < 1) throw config_error("shares: " + std::to_string(ranks) + " ranks; expected at least 1");
  const auto* zero = std::get_if<routing::zero_rank>(&form);
  if (zero == nullptr) return;
  if (zero->rank < 0 || zero->rank >= ranks)
    throw config_error("zero_rank.rank: " + std::to_string(zero->rank) + " does not exist; expected 0 to " +
                       std::to_string(ranks - 1) + ", of " + std::to_string(ranks) + " ranks");
  if (ranks == 1)
    throw config_error("zero_rank.rank: 0 is the only one of 1 ranks; expected at least 2 ranks, so that "
                       "somebody has tokens");
}

namespace detail {

// floor(total * part / whole), without leaving 64 bits.
constexpr std::int64_t fraction_of(std::int64_t total, std::int64_t part, std::int64_t whole) {
  return total / whole * part + total % whole * part / whole;
}

// Where rank `rank` in [0, ranks] begins, as a fraction of everything.
struct share_point {
  std::int64_t part, whole;
};
inline share_point share_begin(const share_form& form, std::int64_t rank, std::int64_t ranks) {
  if (std::holds_alternative<routing::ragged>(form)) return {rank * (rank + 1) / 2, ranks * (ranks + 1) / 2};
  if (const auto* zero = std::get_if<routing::zero_rank>(&form))
    return {rank > zero->rank ? rank - 1 : rank, ranks - 1};
  return {rank, ranks};
}

} // namespace detail

// What rank `rank` gets of `total` sequences. `form` must have passed check_shares; up to 65,535 ranks.
inline share_range share_of(const share_form& form, std::int64_t rank, std::int64_t ranks,
                            std::int64_t total) {
  const auto [first, whole] = detail::share_begin(form, rank, ranks);
  const std::int64_t last = detail::share_begin(form, rank + 1, ranks).part;
  return {detail::fraction_of(total, first, whole), detail::fraction_of(total, last, whole)};
}

// No rank gets more than this of `total` sequences, nor of fewer.
inline std::int64_t largest_share(const share_form& form, std::int64_t ranks, std::int64_t total) {
  const auto up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  if (std::holds_alternative<routing::ragged>(form)) return up(2 * total, ranks + 1);
  return up(total, std::holds_alternative<routing::zero_rank>(form) ? ranks - 1 : ranks);
}

// What distinguishes forms where all ranks must have been given the same.
inline std::int64_t share_code(const share_form& form) {
  const auto* zero = std::get_if<routing::zero_rank>(&form);
  return zero != nullptr ? 2 + zero->rank : static_cast<std::int64_t>(form.index());
}

} // namespace plateau::inline v0
