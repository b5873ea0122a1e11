// SPDX-License-Identifier: Apache-2.0
//
// Dispatches whose every result is asked for its bits, on ranks of any kind: what goes where by name, and a
// few cases that any backend and communicator must pass.
#pragma once

#include "support/dispatch_case.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace support {

// The sums are exact, so the only rounding is the last one.
template <class T> bool same_as_exact(const std::vector<T>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (pl::widen(found[i]) != pl::widen(pl::narrow<T>(static_cast<float>(expected[i])))) return false;
  return true;
}

// Where tokens go, by name; `experts` over `ranks`.
inline std::function<int(int, index_t, index_t)> workload(const std::string& name, int ranks, int experts,
                                                          int top_k) {
  const auto any = [](int rank, index_t t, index_t j, int n) {
    return static_cast<int>(
        (dispatch_case::noise(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(t),
                              static_cast<std::uint64_t>(j), 9) +
         1) *
        0.5 * n);
  };
  if (name == "balanced")
    return [=](int rank, index_t t, index_t j) { return static_cast<int>((rank + top_k * t + j) % experts); };
  if (name == "hot set")
    return [=](int rank, index_t t, index_t j) {
      return t % 10 < 8 ? static_cast<int>(j % 2) : any(rank, t, j, experts);
    };
  if (name == "hot rank") // experts of the last rank
    return [=](int rank, index_t t, index_t j) {
      const pl::expert_homes homes{experts, ranks};
      return t % 10 < 9 && homes.count(ranks - 1) > 0
                 ? static_cast<int>(homes.first(ranks - 1) + (t + j) % homes.count(ranks - 1))
                 : any(rank, t, j, experts);
    };
  if (name == "all to one") return [](int, index_t, index_t) { return 0; };
  if (name == "all to the last") return [=](int, index_t, index_t) { return experts - 1; };
  if (name == "holes") // routes that go nowhere
    return [=](int rank, index_t t, index_t j) { return (t + j) % 3 == 0 ? -1 : any(rank, t, j, experts); };
  if (name == "nowhere") return [](int, index_t, index_t) { return -1; };
  return [=](int rank, index_t t, index_t j) { return any(rank, t, j, experts); }; // spread
}

inline dispatch_case dispatch_of(std::vector<index_t> tokens, int experts, int top_k,
                                 const std::string& name) {
  dispatch_case c;
  c.tokens = std::move(tokens);
  c.shape.experts = experts;
  c.shape.top_k = top_k;
  c.shape.widths = {12};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 16;
  c.shape.placement.least_piece_rows = 1;
  c.expert_of = workload(name, c.ranks(), experts, top_k);
  return c;
}

inline const char* const dispatch_workloads[] = {"balanced",        "hot set", "hot rank", "all to one",
                                                 "all to the last", "holes",   "nowhere",  "spread"};

template <class T, class On> void check_dispatch(const dispatch_case& c, const On& on) {
  const auto found = run_dispatch<T>(c, on);
  for (int r = 0; r < c.ranks(); ++r) {
    CAPTURE(r);
    const auto expected = oracle_of<T>(c, r);
    const auto& mine = found[static_cast<std::size_t>(r)];
    CHECK(same_as_exact(mine.out, expected.out));
    if (!c.backward) continue;
    CHECK(same_as_exact(mine.drows, expected.drows));
    CHECK(same_as_exact(mine.dgates, expected.dgates));
    CHECK(same_as_exact(mine.dweights, expected.dweights));
  }
}

// What any ranks must pass: several rounds, ranks without rows, moved experts, all slots, both ways to add.
template <class T, class On> void check_dispatches(const On& on, int most_ranks) {
  const std::vector<index_t> tokens{20, 0, 33, 1};
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (const char* name : {"hot rank", "holes", "all to one"}) {
      CAPTURE(ranks);
      CAPTURE(name);
      dispatch_case c = dispatch_of({tokens.begin(), tokens.begin() + ranks}, 6, 2, name);
      c.shape.slots = 1 + ranks % 3;
      check_dispatch<T>(c, on);
      c.shape.ordered = true;
      check_dispatch<T>(c, on);
    }
}

} // namespace support
