// SPDX-License-Identifier: Apache-2.0
//
// The model and its training in bf16: against the float64 reference from the same rounded weights, on any
// number of ranks, saved and resumed, and what its memory holds.
#include "bf16_roundings.hpp"
#include "model_cases.hpp"
#include "scratch_folder.hpp"
#include "trainer_on_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using moe::index_t;
using pl_bf16 = plateau::bfloat16;
using test::allowed_moves, test::bf16_config, test::bf16_unit, test::model_case, test::worst_moves;

// A route that is nearly undecided may fall the other way in bf16, and then everything behind it differs: so
// all experts are chosen, or weights are taken under which every choice is clear.
TEST_CASE("bf16: loss and gradients are those of the reference but for roundings") {
  int clear = 0;
  double worst = 0, worst_loss = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const index_t layers = seed % 3 == 0 ? 3 : 1;
    auto config = bf16_config(seed, layers);
    if (seed % 2 == 0) config.experts = config.top_k = 1 + static_cast<index_t>(seed / 2 % 3);
    const auto c = model_case::make<pl_bf16>(config, 100 * seed, 1, 12);
    const auto expected = test::expect(c);
    if (expected.margin < 0.15) continue;
    ++clear;
    for (const int ranks : {1, 2}) {
      const auto actual =
          test::run_model<pl_bf16>({ranks, 1, 1, nullptr, true}, config, c.weights, c.tokens());
      CHECK(std::fabs(actual.loss - expected.loss) <= 2 * bf16_unit * expected.loss);
      const double moves = worst_moves(actual, c, expected);
      CHECK(moves <= allowed_moves);
      worst_loss = std::max(worst_loss, std::fabs(actual.loss / expected.loss - 1));
      worst = std::max(worst, moves);
    }
  }
  CHECK(clear >= 15);
  MESSAGE("cases: ", clear, ", loss: ", worst_loss, " of itself, gradients: ", worst,
          " moves of the weights");
}

TEST_CASE("bf16: several tiles of attention") {
  auto config = bf16_config(2, 1);
  config.experts = config.top_k = 2;
  const auto c = model_case::make<pl_bf16>(config, 5, 2, 150);
  const auto expected = test::expect(c);
  const auto actual = test::run_model<pl_bf16>({2, 2, 1, nullptr, true}, config, c.weights, c.tokens());
  CHECK(std::fabs(actual.loss - expected.loss) <= 2 * bf16_unit * expected.loss);
  CHECK(worst_moves(actual, c, expected) <= allowed_moves);
}

// Every token takes the same way on any rank, with the same bits; only sums of gradients are ordered anew.
TEST_CASE("bf16: ranks agree to the roundings of their sums, and two runs to the bit") {
  auto config = bf16_config(4, 2);
  config.experts = 12;
  config.top_k = 2;
  const auto c = model_case::make<pl_bf16>(config, 6, 5, 7);
  const auto one = test::run_model<pl_bf16>({1, 1, 1, nullptr, true}, config, c.weights, c.tokens());
  for (const auto& [ranks, expert_parallel] :
       {std::pair{2, 2}, std::pair{3, 3}, std::pair{4, 1}, std::pair{4, 4}}) {
    const test::step_setup setup{ranks, expert_parallel, 1, nullptr, true};
    const auto many = test::run_model<pl_bf16>(setup, config, c.weights, c.tokens());
    test::check_step(many, one.loss, one.gradients, 1e-6, 1e-5);
    CHECK(test::same_bits(many, test::run_model<pl_bf16>(setup, config, c.weights, c.tokens())));
  }
}

TEST_CASE("bf16: training learns, its weights are the rounded masters, and resuming goes on bit for bit") {
  const moe_test::scratch_folder folder;
  test::training_case c = test::tiny_case({4, 2});
  moe::corpus text = test::random_text(c.config.vocabulary, 40, 6);
  for (int i = 0; i < 20; ++i)
    text.tokens.insert(text.tokens.end(), text.tokens.begin(), text.tokens.begin() + 40);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  c.settings.steps = 40;
  const auto run = [&](const std::string& from, std::int64_t first, std::int64_t last,
                       const std::string& to) {
    std::vector<double> losses;
    std::vector<std::int64_t> wrong(4);
    test::train_on_ranks<pl_bf16>(c, [&](auto& train) {
      using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
      if (!from.empty()) mover(train).load(moe::safetensors_reader(folder.file(from)), true);
      for (std::int64_t step = first; step < last; ++step) {
        const double loss = train.run_step(sampler, step).loss;
        if (train.world().rank() == 0) losses.push_back(loss);
      }
      for (const moe::parameter_group* group :
           {&train.model().layout().shared, &train.model().layout().expert})
        for (const moe::parameter& p : group->all()) {
          const auto values = [&](auto v) {
            return support::from_device(train.backend(), train.stream(), v);
          };
          const auto master = values(train.optimizer().master(*group, p));
          const auto weight = values(train.model().weights().of(*group, p));
          for (std::size_t i = 0; i < master.size(); ++i)
            if (weight[i].bits != plateau::narrow<pl_bf16>(master[i]).bits)
              ++wrong[static_cast<std::size_t>(train.world().rank())];
        }
      mover(train).save(folder.file(to), {{"step", std::to_string(last)}});
      train.world().close_step();
    });
    for (const std::int64_t each : wrong) CHECK(each == 0);
    return losses;
  };
  const auto whole = run("", 0, 40, "whole");
  CHECK(whole.back() < 0.6 * whole.front());
  auto parts = run("", 0, 17, "half");
  const auto rest = run("half", 17, 40, "resumed");
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(whole == parts);
  CHECK(moe_test::read_file(folder.file("whole")) == moe_test::read_file(folder.file("resumed")));
}

TEST_CASE("bf16: memory by tag: weights 2 B, gradients 4 B, optimizer 12 B a parameter") {
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, moe::rank_grid{4, 2}})
    test::check_memory<pl_bf16>(test::tiny_case(grid));
}
