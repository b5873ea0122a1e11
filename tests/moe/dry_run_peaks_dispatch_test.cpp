// SPDX-License-Identifier: Apache-2.0
//
// Exact bytes with the dispatch by rounds: a dry run has the peaks of the host backend's meters, byte for
// byte, and asks for the same work, on every number of ranks to five, under every scenario and placement;
// what it holds depends on neither depth nor skew, and is what was promised.
#include "dry_run_peaks.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pl = plateau;
using test::forced_case;

namespace {

constexpr moe::flatten_set by_rounds{.dispatch = true};

forced_case case_of(const std::string& scenario, moe::index_t layers) {
  forced_case c;
  c.scenario = scenario;
  test::training_case& t = c.of;
  t.grid = {4, 4};
  t.config.layers = layers;
  t.config.hidden = 8;
  t.config.heads = 2;
  t.config.kv_heads = 1;
  t.config.experts = 8;
  t.config.top_k = 2;
  t.config.intermediate = 6;
  t.config.vocabulary = 13;
  t.config.flatten = by_rounds;
  t.config.dispatch = {24, 24, 2, moe::expert_placement::least_loaded, 2};
  t.settings.context = 16;
  t.settings.batch = 8;
  const auto routing = moe::parse_routing("--routing", scenario);
  t.settings.shares = routing.shares;
  c.routing = std::make_shared<moe::forced_routing>(routing, 8, 2, layers, 4);
  t.forced = c.routing.get();
  return c;
}

std::size_t dispatch_peak(const test::rank_account_of_step::space& space) {
  return space.peaks[static_cast<std::size_t>(pl::tag::dispatch)].bytes;
}

} // namespace

TEST_CASE("exact bytes in fp32") { test::check_grid<float>(5, 11, by_rounds); }
TEST_CASE("exact bytes in bf16") { test::check_grid<pl::bfloat16>(3, 12, by_rounds); }

TEST_CASE("exact bytes without logits, and beside the dispatch by rounds") {
  test::check_grid<float>(4, 13, {.vocabulary = true});
  test::check_grid<float>(3, 14, {.dispatch = true, .vocabulary = true});
}
TEST_CASE("exact bytes with parked inputs, and beside the dispatch by rounds") {
  test::check_grid<float>(3, 21, {.checkpoint = true});
  test::check_grid<float>(2, 22, {.dispatch = true, .checkpoint = true});
}
TEST_CASE("so they are in bf16") { test::check_grid<pl::bfloat16>(2, 15, {.vocabulary = true}); }

TEST_CASE("D8: the dispatch holds the same at any depth and under any skew, and what it promised") {
  const auto promise = moe::capped_dispatch<pl::host_backend, pl::thread_communicator, float>::promised(
      case_of("balanced", 1).of.config, {4, 4}, {2, 16});
  REQUIRE(promise.has_value());
  for (const moe::index_t layers : {8, 64, 1024})
    for (const char* scenario : {"balanced", "hot:0.95,1", "all-to-one", "zipf:1.5", "zero-rank:1"}) {
      if (layers == 1024 && std::string(scenario) != "hot:0.95,1") continue;
      CAPTURE(layers);
      CAPTURE(scenario);
      const forced_case c = case_of(scenario, layers);
      pl::dry_ranks ran;
      // More sequences on the others where one has none.
      const bool uneven = std::string(scenario) == "zero-rank:1";
      const test::step_accounts ranks = test::dry_step<float>(c, ran);
      REQUIRE_FALSE(ran.cause.has_value());
      for (const test::rank_account_of_step& each : ranks) {
        if (uneven) {
          CHECK(dispatch_peak(each.device) == dispatch_peak(ranks[0].device));
          continue;
        }
        CHECK(dispatch_peak(each.device) == promise->device_bytes);
        CHECK(dispatch_peak(each.pinned) == promise->pinned_bytes);
      }
    }
}

TEST_CASE(
    "one host round trip in each layer's forward, none in backward, and two for the losses and the norm") {
  for (const moe::index_t layers : {1, 5}) {
    const forced_case c = case_of("hot:0.95,1", layers);
    pl::dry_ranks ran;
    const auto ranks = test::dry_step<float>(c, ran);
    REQUIRE_FALSE(ran.cause.has_value());
    for (const test::rank_account_of_step& each : ranks)
      CHECK(each.work.host_round_trips == static_cast<std::uint64_t>(layers + 2));
  }
}
