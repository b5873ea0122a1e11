// SPDX-License-Identifier: Apache-2.0
//
// The dispatch on ranks that are threads, against float64: every workload, shape and option; what its plan
// refuses; what it promises to do and not to do.
#include "support/dispatch_case.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;

namespace {

const support::on_threads<> threads;

// The sums are exact, so the only rounding is the last one.
template <class T> bool same(const std::vector<T>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (pl::widen(found[i]) != pl::widen(pl::narrow<T>(static_cast<float>(expected[i])))) return false;
  return true;
}

template <class T> void check_case(const dispatch_case& c) {
  const auto found = support::run_dispatch<T>(c, threads);
  for (int r = 0; r < c.ranks(); ++r) {
    CAPTURE(r);
    const auto expected = support::oracle_of<T>(c, r);
    const auto& mine = found[static_cast<std::size_t>(r)];
    CHECK(same(mine.out, expected.out));
    if (!c.backward) continue;
    CHECK(same(mine.drows, expected.drows));
    CHECK(same(mine.dgates, expected.dgates));
    CHECK(same(mine.dweights, expected.dweights));
  }
}

dispatch_case balanced(int ranks, index_t tokens) {
  dispatch_case c;
  c.tokens.assign(static_cast<std::size_t>(ranks), tokens);
  c.shape.experts = 2 * ranks;
  c.shape.top_k = 2;
  c.shape.widths = {16};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 8;
  const auto experts = static_cast<int>(c.shape.experts);
  c.expert_of = [experts](int rank, index_t t, index_t j) {
    return static_cast<int>((rank + 2 * t + j) % experts);
  };
  return c;
}

} // namespace

TEST_CASE("rows go to their experts and come back") {
  check_case<float>(balanced(1, 5));
  check_case<float>(balanced(2, 7));
  check_case<float>(balanced(3, 64));
}

namespace {

// Where tokens go, by name; `experts` over `ranks`.
std::function<int(int, index_t, index_t)> workload(const std::string& name, int ranks, int experts,
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

dispatch_case make_case(std::vector<index_t> tokens, int experts, int top_k, const std::string& name) {
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

const std::vector<std::string> workloads{"balanced",        "hot set", "hot rank", "all to one",
                                         "all to the last", "holes",   "nowhere",  "spread"};

} // namespace

TEST_CASE("every workload, on ranks with different numbers of tokens, some with none") {
  for (const std::string& name : workloads) {
    CAPTURE(name);
    check_case<float>(make_case({20, 0, 33, 1}, 8, 2, name));
    check_case<float>(make_case({17, 31}, 5, 3, name));    // experts that do not divide
    check_case<float>(make_case({9, 10, 11}, 2, 1, name)); // more ranks than experts
    check_case<pl::bfloat16>(make_case({40}, 4, 2, name));
  }
}
TEST_CASE("every option leaves the results as they are") {
  for (const std::string& name : workloads) {
    CAPTURE(name);
    for (const int slots : {1, 2, 3}) {
      CAPTURE(slots);
      dispatch_case c = make_case({30, 3, 0, 25}, 8, 2, name);
      c.shape.slots = slots;
      check_case<float>(c);
    }
    for (const auto policy :
         {pl::round_policy::expert_first, pl::round_policy::diagonal, pl::round_policy::smooth}) {
      dispatch_case c = make_case({30, 3, 0, 25}, 8, 2, name);
      c.shape.rounds = policy;
      c.shape.send_cap_rows = 7;
      c.shape.receive_cap_rows = 5;
      check_case<float>(c);
    }
    dispatch_case c = make_case({30, 3, 0, 25}, 8, 2, name);
    c.shape.ordered = true;
    check_case<float>(c);
    c.shape.order = pl::row_order::strided;
    check_case<float>(c);
    c.shape.ordered = false;
    c.shape.measure_stalls = true;
    c.no_gates = true;
    check_case<float>(c);
    c.shape.most_rounds = 2;
    check_case<float>(c);
    c.shape.placement.policy = pl::placement_policy::native;
    check_case<float>(c);
    c.shape.send_cap_rows = c.shape.receive_cap_rows = 1;
    c.shape.most_rounds = 0;
    check_case<float>(c);
  }
}
