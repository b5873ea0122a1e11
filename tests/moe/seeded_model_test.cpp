// SPDX-License-Identifier: Apache-2.0
//
// The model on ranks that take turns: whatever order the seed draws for the operations of all ranks, a step
// has the bits that the host backend gives it, and a seed gives its order again.
#include "model_cases.hpp"

#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using test::model_case;
using test::step_setup;

namespace {

reference::transformer_config tiny_config() {
  reference::transformer_config c;
  c.vocabulary = 13;
  c.hidden = 8;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 1;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25; // so that ranks exchange sums within the step too
  return c;
}

template <class T> void same_under_seeds(const step_setup& setup, std::uint64_t seeds) {
  const auto c = model_case::make<T>(tiny_config(), 1, 3, 5);
  const auto expected = test::run_model<T>(setup, c.config, c.weights, c.tokens());
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(setup.ranks);
    CAPTURE(seed);
    std::vector<pl::testing::step> order;
    const auto actual =
        test::run_model<T>(setup, c.config, c.weights, c.tokens(), support::in_turns<>{{seed, &order}});
    CHECK(test::same_bits(actual, expected));
    std::string ranks; // in the order in which they came
    for (const pl::testing::step& each : order) ranks += static_cast<char>('0' + each.rank);
    orders.insert(ranks);
  }
  if (setup.ranks > 1) CHECK(orders.size() == seeds);
}

} // namespace

TEST_CASE("a step has the same bits under any order of its operations") {
  same_under_seeds<float>({1, 1, 1, nullptr, true}, 100);
  same_under_seeds<float>({2, 2, 1, nullptr, true}, 100);
  same_under_seeds<float>({4, 2, 2, nullptr, true}, 100); // with ranks that have nothing in a micro-batch
}
TEST_CASE("D12: so has a step in bf16") { same_under_seeds<pl::bfloat16>({4, 4, 1, nullptr, true}, 20); }

TEST_CASE("a seed gives the order of every operation again") {
  const auto c = model_case::make<float>(tiny_config(), 1, 3, 5);
  std::vector<pl::testing::step> first, again, other;
  for (const auto& [seed, order] : {std::pair{std::uint64_t{7}, &first}, {7, &again}, {8, &other}})
    test::run_model<float>({4, 2, 1, nullptr, true}, c.config, c.weights, c.tokens(),
                           support::in_turns<>{{seed, order}});
  CHECK(first.size() > 1000);
  CHECK(first == again);
  CHECK_FALSE(first == other);
}
