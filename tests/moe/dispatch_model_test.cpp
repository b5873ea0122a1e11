// SPDX-License-Identifier: Apache-2.0
//
// The model with the dispatch by rounds: its losses and gradients are those of the reference and as accurate
// as with the uncapped one, for every cap, placement, number of slots and of ranks, under skew, with ranks
// that have nothing, in fp32 and bf16; the bits of the forward depend on none of these; and training,
// its state and its failures are what they are without it.
#include "bf16_roundings.hpp"
#include "flattened_dispatch.hpp"
#include "model_cases.hpp"
#include "scratch_folder.hpp"
#include "trainer_on_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using moe::expert_placement, moe::index_t;
using test::model_case, test::step_setup;
using pl_bf16 = plateau::bfloat16;

namespace {

constexpr double loss_bound = 1e-6, gradient_bound = 1e-5; // as in model_ranks_test.cpp

// Sixty experts, which 1 to 5 ranks can share.
reference::transformer_config shared_config(index_t top_k = 2) {
  reference::transformer_config c;
  c.vocabulary = 29;
  c.hidden = 24;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = 2;
  c.experts = 60;
  c.top_k = top_k;
  c.intermediate = 11;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}

template <class T> test::step_result capped(const step_setup& setup, const model_case& c) {
  return test::run_model_of<moe::flattened_dispatch, T>(setup, c.config, c.weights, c.tokens());
}

const std::vector<moe::rank_grid> grids{{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4}, {5, 5}};

// Caps of one row and of more than there are, one side narrower than the other; every placement.
const std::vector<moe::dispatch_settings> settings{
    {1, 1, 1, expert_placement::native, 0},        {7, 7, 2, expert_placement::native, 0},
    {16, 5, 3, expert_placement::least_loaded, 1}, {5, 16, 2, expert_placement::least_loaded, 3},
    {9, 9, 1, expert_placement::published, 0},     {4096, 4096, 2, expert_placement::least_loaded, 2}};

std::string named(const moe::dispatch_settings& d) {
  return std::to_string(d.send_cap_rows) + "x" + std::to_string(d.receive_cap_rows) + ", slots " +
         std::to_string(d.slots) + ", placement " + std::to_string(static_cast<int>(d.placement));
}

} // namespace

TEST_CASE("D2, D5, D6: loss and every gradient are those of the reference, on 1 to 5 ranks") {
  std::size_t turn = 0;
  for (const index_t top_k : {1, 2, 3}) {
    CAPTURE(top_k);
    const auto c = model_case::make<float>(shared_config(top_k), 3, 4, 7); // of five ranks one has nothing
    const auto expected = test::expect(c);
    REQUIRE(expected.margin > 1e-4);
    double worst = 0, worst_uncapped = 0;
    for (const moe::rank_grid grid : grids) {
      const step_setup plain{grid.ranks, grid.expert_parallel, 1, nullptr, true};
      const auto uncapped = test::run_model<float>(plain, c.config, c.weights, c.tokens());
      worst_uncapped = std::max(worst_uncapped, test::worst_gradient(uncapped.gradients, expected.gradients));
      for (int some = 0; some < 2; ++some) {
        step_setup setup = plain;
        setup.dispatch = settings[turn++ % settings.size()];
        CAPTURE(grid.ranks);
        CAPTURE(grid.expert_parallel);
        CAPTURE(named(setup.dispatch));
        const auto actual = capped<float>(setup, c);
        CHECK(std::fabs(actual.loss - expected.loss) <= loss_bound * expected.loss);
        const double each = test::worst_gradient(actual.gradients, expected.gradients);
        CHECK(each <= 4 * gradient_bound);
        worst = std::max(worst, each);
      }
    }
    CHECK(worst <= 2 * worst_uncapped);
  }
}

TEST_CASE(
    "the host waits for the device and the other ranks once in each layer's forward, never in backward") {
  const auto c = model_case::make<float>(shared_config(), 3, 5, 7);
  for (const moe::dispatch_settings& d : settings)
    for (const index_t micro : {1, 2}) {
      CAPTURE(named(d));
      const auto losses = capped<float>({4, 4, micro, nullptr, false, d}, c),
                 gradients = capped<float>({4, 4, micro, nullptr, true, d}, c);
      for (std::size_t r = 0; r < 4; ++r)
        for (const auto* of : {&losses.accounts[r], &gradients.accounts[r]}) {
          CHECK(of->work.host_round_trips == static_cast<std::uint64_t>(2 * micro));
          CHECK(of->group.host_exchanges == static_cast<std::uint64_t>(2 * micro));
        }
    }
}

TEST_CASE("micro-batches of uneven size") {
  auto config = shared_config();
  config.balance_weight = 0; // of which each micro-batch has its own
  const auto c = model_case::make<float>(config, 3, 5, 7);
  const auto expected = test::expect(c);
  for (const moe::index_t micro : {2, 3})
    test::check_step(capped<float>({4, 4, micro, nullptr, true, settings[2]}, c), expected.loss,
                     expected.gradients, loss_bound, 2 * gradient_bound);
}

TEST_CASE("D7, D8, D13: so they are under any skew, and whatever experts a token repeats") {
  const auto c = model_case::make<float>(shared_config(), 5, 5, 9);
  for (const char* text : {"balanced", "hot:0.95,1", "all-to-one", "zipf:1.4", "rotating:0.8,2"}) {
    CAPTURE(text);
    const moe::forced_routing forced(moe::parse_routing("--routing", text), 60, 2);
    const auto expected = test::expect(c, &forced);
    for (const moe::rank_grid grid : {moe::rank_grid{4, 4}, {3, 3}, {4, 2}})
      for (const moe::dispatch_settings& d : {settings[1], settings[2], settings[4]}) {
        CAPTURE(grid.ranks);
        CAPTURE(named(d));
        test::check_step(capped<float>({grid.ranks, grid.expert_parallel, 1, &forced, true, d}, c),
                         expected.loss, expected.gradients, loss_bound, gradient_bound);
      }
  }
}

// With up to two routes a token nothing is regrouped: two terms are added to zero.
TEST_CASE("D12: the bits of the losses depend neither on caps, nor on slots, nor on who computes what") {
  for (const index_t top_k : {1, 2}) {
    const auto c = model_case::make<float>(shared_config(top_k), 7, 5, 9);
    const moe::forced_routing forced(moe::parse_routing("--routing", "hot:0.7,3"), 60,
                                     static_cast<int>(top_k));
    const auto expected = capped<float>({4, 4, 1, &forced, false, settings[0]}, c);
    for (const moe::dispatch_settings& d : settings) {
      CAPTURE(named(d));
      const auto actual = capped<float>({4, 4, 1, &forced, false, d}, c);
      for (std::size_t r = 0; r < 4; ++r) CHECK(actual.accounts[r].loss_sum == expected.accounts[r].loss_sum);
      CHECK(actual.loss == expected.loss);
    }
    // The uncapped dispatch adds in the order of a token's slots, and may fuse a product with its sum, so
    // that last places differ where the processor can do that.
    const auto uncapped = test::run_model<float>({4, 4, 1, &forced, false}, c.config, c.weights, c.tokens());
    CHECK(std::fabs(uncapped.loss - expected.loss) <= loss_bound * std::fabs(expected.loss));
    const auto everything = capped<float>({4, 4, 1, &forced, true, settings[2]}, c);
    for (int again = 0; again < 3; ++again)
      CHECK(test::same_bits(capped<float>({4, 4, 1, &forced, true, settings[2]}, c), everything));
  }
}

// A route that is nearly undecided may fall the other way in bf16: so each token has all experts, or weights
// under which its choice is clear.
TEST_CASE("bf16: errors are at most twice those with the uncapped dispatch, and those of a few roundings") {
  double worst = 0, worst_uncapped = 0;
  int clear = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    CAPTURE(seed);
    auto config = test::bf16_config(seed, 1);
    config.experts = 4;
    config.top_k = seed % 2 == 0 ? 4 : 1;
    const auto c = model_case::make<pl_bf16>(config, 100 * seed, 4, 5);
    const auto expected = test::expect(c);
    if (expected.margin < 0.1) continue;
    ++clear;
    for (const int ranks : {2, 4}) {
      const step_setup plain{ranks, ranks, 1, nullptr, true};
      worst_uncapped = std::max(
          worst_uncapped,
          test::worst_moves(test::run_model<pl_bf16>(plain, config, c.weights, c.tokens()), c, expected));
      for (const moe::dispatch_settings& d : {settings[1], settings[2]}) {
        step_setup setup = plain;
        setup.dispatch = d;
        worst = std::max(worst, test::worst_moves(capped<pl_bf16>(setup, c), c, expected));
      }
    }
  }
  CHECK(clear >= 8);
  CHECK(worst <= 2 * worst_uncapped);
  CHECK(worst <= test::allowed_moves);
  MESSAGE("cases: ", clear, ", by rounds: ", worst, " moves of the weights, uncapped: ", worst_uncapped);
}

TEST_CASE("D16: weights of experts without rows are read by nobody") {
  auto c = model_case::make<float>(shared_config(), 9, 4, 7);
  const moe::forced_routing forced(moe::parse_routing("--routing", "all-to-one"), 60, 2); // experts 0 and 1
  const auto clean = capped<float>({4, 4, 1, &forced, true, settings[2]}, c);
  for (auto& [name, tensor] : c.weights) {
    const auto at = name.find("experts.");
    if (at == std::string::npos || std::stoi(name.substr(at + 8)) < 2) continue;
    for (double& value : tensor.data) value = std::numeric_limits<double>::quiet_NaN();
  }
  CHECK(test::same_bits(capped<float>({4, 4, 1, &forced, true, settings[2]}, c), clean));
}

TEST_CASE("training has the losses of the uncapped dispatch, and either goes on from the other's state") {
  const moe_test::scratch_folder folder;
  test::training_case c = test::tiny_case({4, 4});
  c.config.dispatch = settings[2];
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto steps = [&](auto peaks, const std::string& from, std::int64_t first, std::int64_t last,
                         const std::string& to) {
    std::vector<double> losses;
    test::train_on_ranks<float, decltype(peaks)>(c, [&](auto& train) {
      using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
      if (!from.empty()) mover(train).load(moe::safetensors_reader(folder.file(from)), true);
      for (std::int64_t step = first; step < last; ++step) {
        const double loss = train.run_step(sampler, step).loss;
        if (train.world().rank() == 0) losses.push_back(loss);
      }
      mover(train).save(folder.file(to), {{"step", std::to_string(last)}});
      train.world().close_step();
    });
    return losses;
  };
  const auto plain = steps(moe::unflattened{}, "", 0, 20, "plain");
  const auto whole = steps(moe::flattened_dispatch{}, "", 0, 20, "whole");
  CHECK(std::fabs(whole[0] - plain[0]) <= loss_bound * plain[0]);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(std::fabs(whole[i] - plain[i]) <= 1e-4 * plain[i]);
  // Resumed, bit for bit.
  auto parts = steps(moe::flattened_dispatch{}, "", 0, 9, "half");
  const auto rest = steps(moe::flattened_dispatch{}, "half", 9, 20, "resumed");
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(parts == whole);
  CHECK(moe_test::read_file(folder.file("whole")) == moe_test::read_file(folder.file("resumed")));
  // And across.
  const auto across = steps(moe::unflattened{}, "half", 9, 20, "across"),
             back = steps(moe::flattened_dispatch{}, "across", 20, 22, "back");
  for (std::size_t i = 0; i < across.size(); ++i) CHECK(std::fabs(across[i] - rest[i]) <= 1e-4 * rest[i]);
  for (const double loss : back) CHECK(std::isfinite(loss));
}

TEST_CASE("what the report says: rounds, pieces that were moved, and the skew before and after") {
  test::training_case c = test::tiny_case({4, 4});
  const moe::forced_routing forced(moe::parse_routing("--routing", "all-to-one"), 12, 2);
  c.forced = &forced;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  for (const auto placement : {expert_placement::native, expert_placement::least_loaded}) {
    c.config.dispatch = {10, 10, 2, placement, 2};
    test::train_on_ranks<float, moe::flattened_dispatch>(c, [&](auto& train) {
      train.run_step(sampler, 0);
      const auto did = train.model().dispatched();
      REQUIRE(did.has_value());
      CHECK(did->calls == 2);
      // Five sequences of nine tokens with two routes: 90 rows, all for the first rank.
      CHECK(did->native_skew == doctest::Approx(4.0));
      if (placement == expert_placement::native) {
        CHECK(did->rounds == 18);
        CHECK(did->most_rounds == 9);
        CHECK(did->moved == 0);
        CHECK(did->skew == doctest::Approx(4.0));
      } else {
        CHECK(did->most_rounds < 9);
        CHECK(did->moved > 0);
        CHECK(did->skew < 1.2);
      }
      train.world().close_step();
    });
  }
}
