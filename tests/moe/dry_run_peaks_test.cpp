// SPDX-License-Identifier: Apache-2.0
//
// Exact bytes: a dry run of a training step has the peaks of the host backend's meters, byte for byte, and
// asks for the same work; on every number of ranks to eight, under every scenario, in fp32.
#include "dry_run_peaks.hpp"
#include "model_cases.hpp"

#include <doctest/doctest.h>

TEST_CASE("exact bytes in fp32") { test::check_grid<float>(8, 1); }

TEST_CASE("a step holds what was promised before anything existed, to the byte, in fp32") {
  const auto dry = [](const test::forced_case& c) {
    plateau::dry_ranks ran;
    auto accounts = test::dry_step<float>(c, ran);
    if (ran.cause) ran.cause->raise();
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    return accounts;
  };
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 1}, {4, 2}})
    test::check_tight_promises(grid, dry);
  test::check_tight_promises({4, 2}, dry, 2); // that many ranks to a sequence
  test::check_tight_promises({4, 4}, dry, 4);
  test::check_tight_promises({2, 2}, [](const test::forced_case& c) {
    return test::one_step<float>(c, support::on_threads<>{}, test::never_folded);
  });
}

TEST_CASE("what the expert group exchanges is the same without data") {
  using test::model_case;
  reference::transformer_config config;
  config.vocabulary = 17;
  config.hidden = 12;
  config.layers = 2;
  config.heads = 3;
  config.kv_heads = 1;
  config.experts = 4;
  config.top_k = 2;
  config.intermediate = 5;
  config.rope_theta = 1e4;
  for (const char* scenario : {"balanced", "hot:0.75,1", "all-to-one"})
    for (const bool backward : {true, false}) {
      const moe::forced_routing forced(moe::parse_routing("--routing", scenario), 4, 2, 2, 4);
      const auto c = model_case::make<float>(config, 1, 5, 7);
      const test::step_setup setup{4, 2, 2, &forced, backward};
      moe::training_settings settings;
      settings.context = 7;
      settings.batch = 5;
      settings.accumulate = 2;
      const moe::dry_routing routing(forced, test::config_of(config), {4, 2}, settings, 0);
      const auto real = test::run_model<float>(setup, c.config, c.weights, c.tokens());
      const auto dry = test::run_model<float>(setup, c.config, c.weights, c.tokens(),
                                              support::without_data<>{test::answered_by(routing)});
      for (std::size_t rank = 0; rank < 4; ++rank) {
        CAPTURE(scenario);
        CAPTURE(rank);
        test::check_counters(dry.accounts[rank].work, real.accounts[rank].work);
        test::check_counters(dry.accounts[rank].group, real.accounts[rank].group);
        CHECK(dry.accounts[rank].routed == real.accounts[rank].routed);
        CHECK(dry.accounts[rank].dispatch.bytes == real.accounts[rank].dispatch.bytes);
        CHECK(real.accounts[rank].group.sent_bytes > 0);
      }
    }
}
