// SPDX-License-Identifier: Apache-2.0
//
// The model whose vocabulary is split over the ranks and whose loss has no logits: its losses and gradients
// are those of the reference and as accurate as over dense logits, whatever moves around the ring, for every
// tile and number of ranks, tied or not, with ranks that have no tokens or no part of the vocabulary, in fp32
// and bf16, and beside the dispatch by rounds; it holds what it promises; and training and its state are what
// they are without it.
#include "bf16_roundings.hpp"
#include "chosen_peaks.hpp"
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

using moe::index_t;
using plateau::rotation;
using test::model_case, test::step_setup;
using pl_bf16 = plateau::bfloat16;

namespace {

constexpr double loss_bound = 1e-6, gradient_bound = 1e-5; // as in model_ranks_test.cpp

reference::transformer_config odd_config(bool tied, index_t vocabulary = 29) {
  reference::transformer_config c;
  c.vocabulary = vocabulary;
  c.hidden = 24;
  c.layers = 1;
  c.heads = 6;
  c.kv_heads = 2;
  c.experts = 12;
  c.top_k = 2;
  c.intermediate = 11;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  c.tied = tied;
  return c;
}

// Tiles and sub-blocks of one row, of odd sizes, and of more rows than there are; whatever moves.
const std::vector<moe::loss_settings> settings{{1, 1, 1, rotation::activations},
                                               {5, 7, 3, rotation::weights},
                                               {4, 3, 6, rotation::activations},
                                               {3, 8, 1, rotation::weights},
                                               {1024, 2048, 1024, rotation::automatic}};
const std::vector<moe::rank_grid> grids{{1, 1}, {2, 2}, {3, 3}, {4, 2}, {8, 4}};

std::string named(const moe::loss_settings& l) {
  return std::to_string(l.tile_tokens) + "x" + std::to_string(l.tile_vocabulary) + ", hops of " +
         std::to_string(l.hop_rows) + " rows, rotation " + std::to_string(static_cast<int>(l.rotate));
}

template <class T> test::step_result run(const step_setup& setup, const model_case& c) {
  return test::run_model_of<moe::chosen_peaks, T>(setup, c.config, c.weights, c.tokens());
}
step_setup flattened(step_setup plain, const moe::loss_settings& l, bool dispatch = false) {
  plain.flatten = {.dispatch = dispatch, .vocabulary = true};
  plain.dispatch = {7, 5, 2, moe::expert_placement::least_loaded, 1};
  plain.loss = l;
  return plain;
}

} // namespace

TEST_CASE("V5, V11: loss and every gradient are those of the reference, on 1 to 8 ranks, tied or not") {
  std::size_t turn = 0;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto c = model_case::make<float>(odd_config(tied), 3, 4, 7); // of eight ranks four have nothing
    const auto expected = test::expect(c);
    REQUIRE(expected.margin > 1e-4);
    double worst = 0, worst_dense = 0;
    for (const moe::rank_grid grid : grids) {
      const step_setup plain{grid.ranks, grid.expert_parallel, 1, nullptr, true};
      const auto dense = run<float>(plain, c);
      worst_dense = std::max(worst_dense, test::worst_gradient(dense.gradients, expected.gradients));
      for (int some = 0; some < 3; ++some) {
        const step_setup setup = flattened(plain, settings[turn % settings.size()], turn % 2 == 0);
        ++turn;
        CAPTURE(grid.ranks);
        CAPTURE(named(setup.loss));
        const auto actual = run<float>(setup, c);
        CHECK(std::fabs(actual.loss - expected.loss) <= loss_bound * expected.loss);
        const double each = test::worst_gradient(actual.gradients, expected.gradients);
        CHECK(each <= 2 * gradient_bound);
        worst = std::max(worst, each);
        CHECK(test::same_bits(run<float>(setup, c), actual));
      }
    }
    CHECK(worst <= 2 * worst_dense);
  }
}

TEST_CASE("V5: so they are with more ranks than vocabulary, in micro-batches, and under skew") {
  auto config = odd_config(false, 5);
  config.balance_weight = 0; // of which each micro-batch has its own
  const auto c = model_case::make<float>(config, 5, 5, 6);
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:0.9,1"), 12, 2);
  const auto expected = test::expect(c, &forced);
  for (const moe::loss_settings& l : settings)
    for (const index_t micro : {1, 3}) {
      CAPTURE(named(l));
      const auto actual = run<float>(flattened({8, 4, micro, &forced, true}, l, true), c);
      test::check_step(actual, expected.loss, expected.gradients, loss_bound, 2 * gradient_bound);
    }
}

TEST_CASE("bf16: errors are at most twice those over dense logits, and those of a few roundings") {
  double worst = 0, worst_dense = 0;
  int clear = 0;
  std::size_t turn = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
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
      worst_dense = std::max(worst_dense, test::worst_moves(run<pl_bf16>(plain, c), c, expected));
      const auto actual = run<pl_bf16>(flattened(plain, settings[turn++ % settings.size()]), c);
      worst = std::max(worst, test::worst_moves(actual, c, expected));
    }
  }
  CHECK(clear >= 4);
  CHECK(worst <= 2 * worst_dense);
  CHECK(worst <= test::allowed_moves);
  MESSAGE("cases: ", clear, ", without logits: ", worst, " moves of the weights, dense: ", worst_dense);
}

// The tile is all that there is of the logits: 4 bytes of each in fp32.
TEST_CASE(
    "the loss holds what it promised, on every rank: less than the logits, and whatever the vocabulary") {
  std::vector<std::size_t> peaks;
  for (const index_t vocabulary : {300, 600}) {
    auto config = odd_config(false, vocabulary);
    const auto c = model_case::make<float>(config, 7, 4, 40);
    const step_setup plain{4, 2, 1, nullptr, true};
    const auto dense = run<float>(plain, c);
    const auto actual = run<float>(flattened(plain, {8, 16, 8, rotation::activations}), c);
    for (std::size_t r = 0; r < 4; ++r) {
      const auto& account = actual.accounts[r];
      REQUIRE(account.promises.size() == 1);
      CHECK(account.promises[0].of == plateau::tag::vocabulary);
      CHECK(account.vocabulary.bytes == account.promises[0].most.device_bytes);
      CHECK(dense.accounts[r].promises.empty());
      CHECK(dense.accounts[r].vocabulary.bytes >= static_cast<std::size_t>(40 * vocabulary * 4));
      CHECK(account.vocabulary.bytes < dense.accounts[r].vocabulary.bytes);
    }
    peaks.push_back(actual.accounts[0].vocabulary.bytes);
  }
  CHECK(peaks[0] == peaks[1]);
}

TEST_CASE("training has the losses and norms of dense logits, and either goes on from the other's state") {
  const moe_test::scratch_folder folder;
  test::training_case c = test::tiny_case({3, 3});
  SUBCASE("untied") {}
  SUBCASE("tied") { c.config.tied = true; }
  c.config.loss = {5, 7, 4, rotation::automatic};
  c.settings.accumulate = 2;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  struct course {
    std::vector<double> losses, norms;
    double held_out = 0;
  };
  const auto steps = [&](bool flat, int ranks, const std::string& from, std::int64_t first, std::int64_t last,
                         const std::string& to) {
    course out;
    test::training_case one = c;
    one.grid = {ranks, ranks};
    one.config.flatten.vocabulary = flat;
    test::train_on_ranks<float, moe::chosen_peaks>(one, [&](auto& train) {
      using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
      mover moves(train);
      if (!from.empty()) moves.load(moe::safetensors_reader(folder.file(from)), true);
      for (std::int64_t step = first; step < last; ++step) {
        const moe::step_outcome each = train.run_step(sampler, step);
        if (train.world().rank() != 0) continue;
        out.losses.push_back(each.loss);
        out.norms.push_back(each.gradient_norm);
      }
      moves.save(folder.file(to), {{"step", std::to_string(last)}});
      const double held_out = train.held_out_loss(sampler);
      if (train.world().rank() == 0) out.held_out = held_out;
      train.world().close_step();
    });
    return out;
  };
  // The initial weights do not depend on who holds them.
  steps(false, 3, "", 0, 0, "dense weights");
  steps(true, 4, "", 0, 0, "split weights");
  CHECK(moe_test::read_file(folder.file("dense weights")) ==
        moe_test::read_file(folder.file("split weights")));

  const course plain = steps(false, 3, "", 0, 12, "plain"), whole = steps(true, 3, "", 0, 12, "whole");
  CHECK(std::fabs(whole.losses[0] - plain.losses[0]) <= loss_bound * plain.losses[0]);
  CHECK(std::fabs(whole.norms[0] - plain.norms[0]) <= gradient_bound * plain.norms[0]);
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    CHECK(std::fabs(whole.losses[i] - plain.losses[i]) <= 1e-4 * plain.losses[i]);
    CHECK(std::fabs(whole.norms[i] - plain.norms[i]) <= 1e-3 * plain.norms[i]);
  }
  CHECK(std::fabs(whole.held_out - plain.held_out) <= 1e-4 * plain.held_out);
  // Resumed, bit for bit.
  course parts = steps(true, 3, "", 0, 5, "half");
  const course rest = steps(true, 3, "half", 5, 12, "resumed");
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  CHECK(parts.losses == whole.losses);
  CHECK(moe_test::read_file(folder.file("whole")) == moe_test::read_file(folder.file("resumed")));
  // And across: on another number of ranks, over dense logits, and back.
  const course wider = steps(true, 4, "half", 5, 12, "wider"),
               across = steps(false, 3, "half", 5, 12, "across"),
               back = steps(true, 2, "plain", 12, 14, "back"), on = steps(false, 3, "plain", 12, 14, "on");
  for (std::size_t i = 0; i < rest.losses.size(); ++i) {
    CHECK(std::fabs(wider.losses[i] - rest.losses[i]) <= 1e-4 * rest.losses[i]);
    CHECK(std::fabs(across.losses[i] - rest.losses[i]) <= 1e-4 * rest.losses[i]);
  }
  for (std::size_t i = 0; i < on.losses.size(); ++i)
    CHECK(std::fabs(back.losses[i] - on.losses[i]) <= 1e-4 * on.losses[i]);
}
