// SPDX-License-Identifier: Apache-2.0
//
// All that outlives a layer's forward: how many rows every rank sends to every expert, and which of them
// other ranks than the expert's home compute. It is on the host, ranks x experts x 8 bytes and a few pieces,
// the same on every rank; everything else follows from it. A plan is a value: as many as are wanted may be in
// flight.
#pragma once

#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/config.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace plateau::inline v0 {

inline constexpr int plan_numbers = 64;

struct dispatch_plan {
  int ranks = 0;
  index_t experts = 0;
  index_t tokens = 0;              // of this rank
  int number = 0;                  // of the operator's plans, modulo plan_numbers
  std::vector<index_t> rows;       // (ranks, experts): rows that a rank sends to an expert
  std::vector<moved_piece> pieces; // sorted by expert, then rank

  index_t rows_of(int source, index_t expert) const {
    return rows[static_cast<std::size_t>(source * experts + expert)];
  }
  std::span<const index_t> rows_of_rank(int source) const {
    return std::span<const index_t>(rows).subspan(static_cast<std::size_t>(source * experts),
                                                  static_cast<std::size_t>(experts));
  }
};

namespace detail::dispatch {

// What the first exchange of a call is called. Communicators compare names, so that ranks which come with
// different plans are told, with the numbers of both, before anything moves.
struct first_exchange_names {
  static constexpr char begin[] = "first rows of dispatch plan ";
  std::array<std::array<char, sizeof(begin) + 2>, plan_numbers> text{};

  constexpr first_exchange_names() {
    for (std::size_t n = 0; n < text.size(); ++n) {
      std::size_t at = 0;
      for (; begin[at] != '\0'; ++at) text[n][at] = begin[at];
      if (n >= 10) text[n][at++] = static_cast<char>('0' + n / 10);
      text[n][at] = static_cast<char>('0' + n % 10);
    }
  }
};
inline constexpr first_exchange_names names_of_plans;

inline const char* first_exchange_name(const dispatch_plan& p) {
  const int n = p.number >= 0 && p.number < plan_numbers ? p.number : 0;
  return names_of_plans.text[static_cast<std::size_t>(n)].data();
}

} // namespace detail::dispatch

} // namespace plateau::inline v0
