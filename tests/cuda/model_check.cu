// SPDX-License-Identifier: Apache-2.0
//
// The model on a GPU against what the host's tests hold the host to: the published implementation, and the
// float64 reference on random shapes, in fp32 and in bf16; several ranks share the GPU.
#include "moe/bf16_roundings.hpp"
#include "moe/golden_check.hpp"
#include "moe/model_cases.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

using moe::index_t;
using plateau::bfloat16;
using test::model_case;

namespace {

using on_gpu = support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator>;

// Twelve experts, which 1, 2, 3 and 4 ranks can share.
reference::transformer_config shared_config() {
  reference::transformer_config c;
  c.vocabulary = 29;
  c.hidden = 24;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = 2;
  c.experts = 12;
  c.top_k = 2;
  c.intermediate = 11;
  c.rope_theta = 1e4;
  return c;
}

const std::pair<int, int> grids[] = {{1, 1}, {2, 2}, {3, 1}, {4, 2}, {4, 4}};

void check_fp32(const model_case& c, index_t micro_batches, int ranks, int expert_parallel) {
  CAPTURE(ranks);
  CAPTURE(expert_parallel);
  const test::expectation expected = test::expect(c);
  REQUIRE(expected.margin > 1e-4);
  const auto actual = test::run_model<float>({ranks, expert_parallel, micro_batches, nullptr, true}, c.config,
                                             c.weights, c.tokens(), on_gpu{});
  test::check_step(actual, expected.loss, expected.gradients, 1e-6, 1e-5); // as model_ranks_test.cpp
}

} // namespace

TEST_CASE("the golden loss and gradients") {
  for (const std::string& name : golden::case_names)
    for (const auto& [ranks, expert_parallel] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 2}})
      golden::check_case(name, ranks, expert_parallel, 1, on_gpu{});
}

TEST_CASE("fp32: random shapes, loss and every gradient against float64") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    check_fp32(model_case::make<float>(test::random_config(seed, seed % 2 == 0 ? 1 : 3), 10 * seed,
                                       1 + static_cast<index_t>(seed % 3),
                                       1 + static_cast<index_t>(seed * 5 % 23)),
               1, seed % 3 == 0 ? 2 : 1, 1);
  }
}

TEST_CASE("fp32: several tiles of attention, and any number of ranks in several micro-batches") {
  auto config = test::random_config(7, 2);
  config.heads = 4;
  config.kv_heads = 2;
  config.hidden = 24;
  check_fp32(model_case::make<float>(config, 3, 3, 150), 1, 2, 1);
  auto shared = shared_config();
  for (const auto& [ranks, expert_parallel] : grids)
    check_fp32(model_case::make<float>(shared, 3, 5, 7), 3, ranks, expert_parallel);
  shared.balance_weight = 0.5;
  shared.tied = true;
  for (const auto& [ranks, expert_parallel] : grids)
    check_fp32(model_case::make<float>(shared, 2, 5, 7), 1, ranks, expert_parallel);
}

TEST_CASE("two runs give the same bits") {
  auto config = shared_config();
  config.balance_weight = 0.5;
  const auto c = model_case::make<float>(config, 9, 5, 7);
  for (const auto& [ranks, expert_parallel] : grids) {
    const test::step_setup setup{ranks, expert_parallel, 2, nullptr, true};
    const auto first = test::run_model<float>(setup, config, c.weights, c.tokens(), on_gpu{});
    for (int again = 0; again < 3; ++again)
      CHECK(test::same_bits(first, test::run_model<float>(setup, config, c.weights, c.tokens(), on_gpu{})));
  }
}

TEST_CASE("bf16: loss and gradients are those of the reference but for roundings") {
  int clear = 0;
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    CAPTURE(seed);
    auto config = test::bf16_config(seed, seed % 3 == 0 ? 3 : 1);
    // A route that is nearly undecided may fall the other way: every second time all experts are chosen.
    if (seed % 2 == 0) config.experts = config.top_k = 1 + static_cast<index_t>(seed / 2 % 3);
    const auto c = model_case::make<bfloat16>(config, 100 * seed, 1, 12);
    const auto expected = test::expect(c);
    if (expected.margin < 0.15) continue;
    ++clear;
    for (const int ranks : {1, 2}) {
      const auto actual =
          test::run_model<bfloat16>({ranks, 1, 1, nullptr, true}, config, c.weights, c.tokens(), on_gpu{});
      CHECK(std::fabs(actual.loss - expected.loss) <= 2 * test::bf16_unit * expected.loss);
      const double moves = test::worst_moves(actual, c, expected);
      CHECK(moves <= test::allowed_moves);
      worst = moves > worst ? moves : worst;
    }
  }
  CHECK(clear >= 6);
  MESSAGE("cases: ", clear, ", gradients: ", worst, " moves of the weights");
}
