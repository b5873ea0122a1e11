// SPDX-License-Identifier: Apache-2.0
//
// The reference model and its trainer on the CUDA backend, several ranks on one device, on the stand-in: the
// step and the losses of training are as right as the host backend's are.
#include "moe/bf16_roundings.hpp"
#include "moe/model_cases.hpp"
#include "moe/trainer_reference.hpp"
#include "support/accuracy.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace pl = plateau;
using test::model_case;

namespace {

using on_cuda = support::on_threads<pl::cuda_backend, pl::cuda_thread_communicator>;

reference::transformer_config small_config() {
  reference::transformer_config c;
  c.vocabulary = 13;
  c.hidden = 12;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = 3;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 7;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}

// Losses of `steps` steps of several runs from different weights on different texts, and those of float64.
struct runs {
  std::vector<double> losses, exact;
};
template <class T, class Ranks> runs train(moe::rank_grid grid, std::int64_t steps, const Ranks& on) {
  runs out;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    test::training_case c = test::tiny_case(grid);
    c.config.layers = 1;
    c.config.experts = c.config.top_k = 2; // a choice of experts may fall the other way by a rounding
    c.settings.batch = 3;
    c.settings.steps = steps;
    c.settings.warmup = 1;
    c.seed = seed;
    const moe::corpus text = test::random_text(c.config.vocabulary, 300, seed);
    const moe::token_sampler sampler(text, c.settings.context, seed);
    std::vector<moe::step_outcome> outcomes;
    test::weights_after<T>(c, sampler, steps, &outcomes, on);
    for (const moe::step_outcome& each : outcomes) out.losses.push_back(each.loss);
    c.grid = {1, 1};
    const auto begin = test::weights_after<T>(c, sampler, 0);
    for (const double exact : test::train_reference<T>(c, sampler, steps, begin).losses)
      out.exact.push_back(exact);
  }
  return out;
}

// The rule of docs/numerics.md: over runs and steps, errors are at most twice those of the plain computation
// at the same precision, here the host backend's, plus a unit of fp32, which a loss is.
template <class T> void as_right_as_the_host(moe::rank_grid grid) {
  CAPTURE(grid.ranks);
  constexpr std::int64_t steps = 3;
  const runs host = train<T>(grid, steps, support::on_threads<>{}), cuda = train<T>(grid, steps, on_cuda{});
  REQUIRE(host.losses.size() == 5 * steps);
  REQUIRE(cuda.losses.size() == 5 * steps);
  const auto error = [](const runs& r) {
    return support::deviation_of(r.exact, [&](std::size_t i) { return r.losses[i]; });
  };
  const support::deviation ours = error(cuda), theirs = error(host);
  const double unit = support::unit_in_last_place<float>(
      support::deviation_of(host.exact, [](std::size_t) { return 0.0; }).rms);
  MESSAGE("ranks: ", grid.ranks, ", rms: ", ours.rms, " (host: ", theirs.rms, "), largest: ", ours.largest,
          " (host: ", theirs.largest, ")");
  CHECK(ours.rms <= 2 * theirs.rms + unit);
  CHECK(ours.largest <= 2 * theirs.largest + unit);
}

} // namespace

TEST_CASE("cuda on host: fp32: loss and every gradient of a step are those of the reference") {
  const auto c = model_case::make<float>(small_config(), 1, 3, 7);
  const test::expectation expected = test::expect(c);
  REQUIRE(expected.margin > 1e-4);
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 1}, {2, 2}}) {
    CAPTURE(grid.ranks);
    const test::step_setup setup{grid.ranks, grid.expert_parallel, 1, nullptr, true};
    const auto actual = test::run_model<float>(setup, c.config, c.weights, c.tokens(), on_cuda{});
    test::check_step(actual, expected.loss, expected.gradients, 1e-6, 1e-5); // as moe/model_ranks_test.cpp
    CHECK(test::same_bits(actual, test::run_model<float>(setup, c.config, c.weights, c.tokens(), on_cuda{})));
  }
}
TEST_CASE("cuda on host: bf16: loss and gradients of a step are those of the reference but for roundings") {
  auto config = small_config();
  config.experts = config.top_k = 2;
  const auto c = model_case::make<pl::bfloat16>(config, 2, 3, 7);
  const test::expectation expected = test::expect(c);
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 2}}) {
    CAPTURE(grid.ranks);
    const auto actual = test::run_model<pl::bfloat16>({grid.ranks, grid.expert_parallel, 1, nullptr, true},
                                                      c.config, c.weights, c.tokens(), on_cuda{});
    CHECK(std::fabs(actual.loss - expected.loss) <= 2 * test::bf16_unit * expected.loss);
    CHECK(test::worst_moves(actual, c, expected) <= test::allowed_moves);
  }
}

TEST_CASE("cuda on host: fp32: losses of training are as right as the host's") {
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 2}}) as_right_as_the_host<float>(grid);
}
TEST_CASE("cuda on host: bf16: losses of training are as right as the host's") {
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 1}}) as_right_as_the_host<pl::bfloat16>(grid);
}
