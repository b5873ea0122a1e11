// SPDX-License-Identifier: Apache-2.0
//
// Workloads of all kinds, every result asked for its bits: hot sets of any share and size, sources with very
// different numbers of tokens, steps of one operator that have nothing in common, and numbers of tokens
// beside those where rounds begin and end.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;
using support::dispatch_of;

namespace {

const support::on_threads<> threads;
using rank_type = support::dispatch_rank<float, pl::host_backend, pl::thread_communicator>;

// `percent` of each hundred tokens go to the `hot` experts from `first` on, the others past them all.
dispatch_case hot_case(std::vector<index_t> tokens, int experts, int percent, int hot, int first = 0) {
  dispatch_case c = dispatch_of(std::move(tokens), experts, 2, "spread");
  c.expert_of = [=](int rank, index_t t, index_t j) {
    const index_t one = t % 100 < percent ? (rank + t + j) % hot : hot + (rank + 2 * t + j) % (experts - hot);
    return static_cast<int>((first + one) % experts);
  };
  return c;
}

// The exact results of all ranks in one pass over the tokens, for cases that are large.
std::vector<support::dispatch_oracle> all_results(const dispatch_case& c) {
  const index_t w = c.width(), k = c.shape.top_k;
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  std::vector<double> weights(at(c.shape.experts * w)), dweights(weights.size());
  for (index_t e = 0; e < c.shape.experts; ++e)
    for (index_t i = 0; i < w; ++i) weights[at(e * w + i)] = static_cast<double>(c.weight<float>(e, i));
  std::vector<support::dispatch_oracle> all(c.tokens.size());
  std::vector<double> x(at(w)), g(at(w));
  for (int r = 0; r < c.ranks(); ++r) {
    const index_t n = c.tokens[static_cast<std::size_t>(r)];
    support::dispatch_oracle& o = all[static_cast<std::size_t>(r)];
    o.out.resize(at(n * w));
    o.drows.resize(at(n * w));
    o.dgates.resize(at(n * k));
    for (index_t t = 0; t < n; ++t) {
      for (index_t i = 0; i < w; ++i) {
        x[at(i)] = static_cast<double>(c.row<float>(r, t, i));
        g[at(i)] = static_cast<double>(c.upstream<float>(r, t, i));
        o.out[at(t * w + i)] = static_cast<double>(c.before<float>(r, t, i));
      }
      for (index_t j = 0; j < k; ++j) {
        const int e = c.expert_of(r, t, j);
        if (e < 0) continue;
        const auto gate = static_cast<double>(c.gate(r, t, j));
        for (index_t i = 0; i < w; ++i) {
          const double weight = weights[at(e * w + i)];
          o.out[at(t * w + i)] += gate * weight * x[at(i)];
          o.drows[at(t * w + i)] += gate * weight * g[at(i)];
          o.dgates[at(t * k + j)] += weight * x[at(i)] * g[at(i)];
          dweights[at(e * w + i)] += gate * x[at(i)] * g[at(i)];
        }
      }
    }
  }
  const pl::expert_homes homes{c.shape.experts, c.ranks()};
  for (int r = 0; r < c.ranks(); ++r)
    all[static_cast<std::size_t>(r)].dweights.assign(dweights.begin() + homes.first(r) * w,
                                                     dweights.begin() + homes.first(r + 1) * w);
  return all;
}
void check_results(const support::dispatch_results<float>& mine, const support::dispatch_oracle& expected) {
  CHECK(support::same_as_exact(mine.out, expected.out));
  CHECK(support::same_as_exact(mine.drows, expected.drows));
  CHECK(support::same_as_exact(mine.dgates, expected.dgates));
  CHECK(support::same_as_exact(mine.dweights, expected.dweights));
}
// The results, after all of them have been found right.
std::vector<support::dispatch_results<float>> checked(const dispatch_case& c) {
  auto found = support::run_dispatch<float>(c, threads);
  const auto expected = all_results(c);
  for (std::size_t r = 0; r < found.size(); ++r) {
    CAPTURE(r);
    check_results(found[r], expected[r]);
  }
  return found;
}

// Steps of one operator, made for the most tokens of any; their rounds.
std::vector<index_t> check_steps(const std::vector<dispatch_case>& steps) {
  dispatch_case most = steps.front();
  for (const dispatch_case& c : steps)
    for (std::size_t r = 0; r < most.tokens.size(); ++r)
      most.tokens[r] = std::max(most.tokens[r], c.tokens[r]);
  std::vector<std::vector<support::dispatch_oracle>> expected;
  for (const dispatch_case& c : steps) expected.push_back(all_results(c));
  std::vector<index_t> rounds(steps.size());
  threads.run(most.ranks(), [&](auto& comm, auto& backend) {
    rank_type rank(most, backend, comm);
    pl::dispatch_plan p;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      CAPTURE(step);
      rank.turn_to(steps[step]);
      rank.plan(p);
      rank.forward(p);
      if (comm.rank() == 0) rounds[step] = rank.exchange().statistics().rounds;
      rank.backward(p);
      check_results(rank.results(), expected[step][static_cast<std::size_t>(comm.rank())]);
    }
  });
  return rounds;
}

index_t ceil_of(index_t a, index_t b) { return (a + b - 1) / b; }

} // namespace

TEST_CASE("30 to 95% of the tokens into 1, 4 or 16 experts, at home or moved, with 1 to 3 slots") {
  int at = 0;
  for (const int percent : {30, 50, 80, 95})
    for (const int hot : {1, 4, 16}) {
      CAPTURE(percent);
      CAPTURE(hot);
      const int first = at++; // of the hot experts
      dispatch_case c = hot_case({200, 100, 200, 300}, 32, percent, hot, first);
      c.shape.slots = 1 + first % 3;
      c.shape.placement.policy = pl::placement_policy::native;
      const auto native = checked(c);
      c.shape.placement.policy = pl::placement_policy::bounded_least_loaded;
      const auto moved = checked(c);
      // It is the share that the case says, of 1,600 rows; and moving has levelled what can be levelled.
      index_t in_hot_set = 0;
      for (int r = 0; r < 4; ++r)
        for (int e = 0; e < hot; ++e)
          in_hot_set += native[0].counts[static_cast<std::size_t>(r * 32 + (first + e) % 32)];
      CHECK(in_hot_set == 16 * percent);
      CHECK(moved[0].forward.largest_native_load == native[0].forward.largest_load);
      CHECK(moved[0].forward.largest_load <= native[0].forward.largest_load);
      if (percent >= 80) CHECK(moved[0].forward.moved_experts > 0);
    }
}

TEST_CASE("sources with very different numbers of tokens") {
  for (const std::vector<index_t>& tokens :
       {std::vector<index_t>{700, 1, 0, 37, 250}, {0, 0, 0, 0, 999}, {1, 2, 4, 8, 800}})
    for (const char* name : {"balanced", "hot set", "hot rank", "spread"}) {
      CAPTURE(name);
      const auto found = checked(dispatch_of(tokens, 10, 2, name));
      CHECK(found[0].forward.rounds >= ceil_of(2 * *std::max_element(tokens.begin(), tokens.end()), 16));
    }
}

TEST_CASE("a burst: balanced steps before and after those in which all rows are one expert's") {
  for (const auto policy : {pl::placement_policy::native, pl::placement_policy::bounded_least_loaded}) {
    std::vector<dispatch_case> steps;
    for (const char* name :
         {"balanced", "all to one", "balanced", "all to the last", "nowhere", "balanced"}) {
      steps.push_back(dispatch_of({120, 120, 120, 120}, 8, 2, name));
      steps.back().shape.placement.policy = policy;
    }
    const std::vector<index_t> rounds = check_steps(steps);
    const bool native = policy == pl::placement_policy::native;
    // 240 rows of each rank in sixteens; those of all four where nothing moves.
    CHECK(rounds == std::vector<index_t>{15, native ? 60 : rounds[1], 15, native ? 60 : rounds[3], 0, 15});
    CHECK(rounds[1] >= 15);
    CHECK(rounds[1] <= 60);
  }
}

TEST_CASE("a hot set that wanders over all experts, step by step") {
  std::vector<dispatch_case> steps;
  for (int step = 0; step < 12; ++step) {
    steps.push_back(hot_case({60, 40, 50, 7}, 12, 80, 3, step));
    steps.back().shape.slots = 3;
  }
  check_steps(steps);
}

TEST_CASE("another number of tokens each step") {
  std::vector<dispatch_case> steps;
  const std::vector<index_t> of_step[] = {{3, 0, 90},  {90, 90, 90}, {0, 0, 0}, {1, 1, 1},   {0, 1, 0},
                                          {89, 90, 1}, {16, 17, 15}, {8, 8, 8}, {90, 0, 90}, {7, 64, 33}};
  for (const auto& tokens : of_step) steps.push_back(dispatch_of(tokens, 7, 2, "hot rank"));
  check_steps(steps);
}

TEST_CASE("tokens beside a multiple of the cap: rows of each rank, and rounds to the one") {
  const index_t cap = 16;
  for (const index_t n : {index_t{0}, index_t{1}, cap - 1, cap, cap + 1, 2 * cap - 1, 2 * cap, 2 * cap + 1})
    for (const int top_k : {1, 2}) {
      CAPTURE(n);
      CAPTURE(top_k);
      dispatch_case c = dispatch_of({n, n, n}, 6, top_k, "spread");
      c.shape.placement.policy = pl::placement_policy::native;
      c.expert_of = [](int rank, index_t t, index_t j) { return static_cast<int>(2 * rank + (t + j) % 2); };
      CHECK(checked(c)[0].forward.rounds == ceil_of(n * top_k, cap)); // each rank's own
      c.expert_of = [](int rank, index_t t, index_t j) {
        return static_cast<int>((2 * (rank + 1) + (t + j) % 2) % 6);
      };
      CHECK(checked(c)[0].forward.rounds == ceil_of(n * top_k, cap)); // the next rank's
      c.expert_of = [](int, index_t, index_t) { return 3; };
      CHECK(checked(c)[0].forward.rounds == ceil_of(3 * n * top_k, cap)); // all to one
      c.shape.placement.policy = pl::placement_policy::bounded_least_loaded;
      CHECK(checked(c)[0].forward.rounds <= ceil_of(3 * n * top_k, cap));
    }
}

TEST_CASE("1 to 8 ranks") {
  const std::vector<index_t> tokens{33, 16, 0, 50, 1, 17, 31, 15};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    dispatch_case c = dispatch_of({tokens.begin(), tokens.begin() + ranks}, 11, 2, "hot rank");
    c.shape.slots = 1 + ranks % 3;
    const auto found = checked(c);
    CHECK(found[0].forward.ranks == ranks);
  }
}

TEST_CASE("131,072 tokens a rank, and one less or more, in rounds of 4,096 and of one less or more") {
  struct large {
    std::vector<index_t> tokens;
    int top_k;
    index_t width, cap;
    const char* where;
  };
  const large cases[] = {{{131071, 131072}, 2, 2, 4096, "balanced"},
                         {{131072, 131072}, 1, 3, 4097, "spread"},
                         {{131073, 0, 131071}, 1, 2, 4095, "hot set"},
                         {{131072, 1, 0, 131071}, 1, 4, 65536, "all to one"}};
  for (const large& of : cases) {
    CAPTURE(of.where);
    dispatch_case c = dispatch_of(of.tokens, 8, of.top_k, of.where);
    c.shape.widths = {of.width};
    c.shape.send_cap_rows = c.shape.receive_cap_rows = of.cap;
    const auto found = checked(c);
    index_t all = 0;
    for (const index_t n : of.tokens) all += n * of.top_k;
    CHECK(found[0].forward.all_rows == all);
    CHECK(found[0].forward.rounds >= ceil_of(131071 * of.top_k, of.cap));
  }
}
