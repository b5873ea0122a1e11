// SPDX-License-Identifier: Apache-2.0
//
// The model in fp32 against the float64 reference, on random shapes and any number of ranks; ranks with
// nothing to do; and what a step costs: products, host round trips, exchanges.
#include "model_cases.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using moe::index_t;
using test::model_case;
using test::step_setup;

namespace {

// A few hundred roundings of 2^-24 in a row, each of them random.
constexpr double loss_bound = 1e-6, gradient_bound = 1e-5;

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

const std::vector<moe::rank_grid> grids{{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}, {4, 4}};

std::int64_t rows_to(const moe::routing_counts& counts, index_t experts, index_t first, index_t n) {
  std::int64_t rows = 0;
  for (std::size_t source = 0; source < counts.size(); source += static_cast<std::size_t>(experts))
    for (index_t e = first; e < first + n; ++e) rows += counts[source + static_cast<std::size_t>(e)];
  return rows;
}

void check_all(const std::vector<moe::rank_grid>& on, const model_case& c, index_t micro_batches = 1) {
  const test::expectation expected = test::expect(c);
  REQUIRE(expected.margin > 1e-4);
  for (const moe::rank_grid grid : on) {
    CAPTURE(grid.ranks);
    CAPTURE(grid.expert_parallel);
    const auto actual = test::run_model<float>(
        {grid.ranks, grid.expert_parallel, micro_batches, nullptr, true}, c.config, c.weights, c.tokens());
    test::check_step(actual, expected.loss, expected.gradients, loss_bound, gradient_bound);
  }
}

} // namespace

TEST_CASE("random shapes: loss and every gradient are those of the reference") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const auto config = test::random_config(seed, seed % 2 == 0 ? 1 : 3);
    check_all({{seed % 3 == 0 ? 2 : 1, 1}},
              model_case::make<float>(config, 10 * seed, 1 + static_cast<index_t>(seed % 3),
                                      1 + static_cast<index_t>(seed * 5 % 23)));
  }
}

TEST_CASE("a context of several tiles of attention, whose last ones are not full") {
  for (const index_t context : {64, 65, 150, 259}) {
    CAPTURE(context);
    auto config = test::random_config(7, 2);
    config.heads = 4;
    config.kv_heads = 2;
    config.hidden = 24;
    check_all({{2, 1}}, model_case::make<float>(config, 3, context == 150 ? 3 : 1, context));
  }
}

TEST_CASE("D1: any number of ranks and expert groups, with uneven shares, takes the same step") {
  check_all(grids, model_case::make<float>(shared_config(), 1, 5, 7));
}
TEST_CASE("the balance loss is that of the whole batch on any number of ranks") {
  auto config = shared_config();
  config.balance_weight = 0.5;
  config.tied = true;
  config.top_k = 3;
  check_all(grids, model_case::make<float>(config, 2, 5, 7));
}
TEST_CASE("micro-batches add up, also when a rank has nothing in one of them") {
  check_all(grids, model_case::make<float>(shared_config(), 3, 5, 7), 3);
}
TEST_CASE("a balance loss over micro-batches is the mean of theirs, each with its share of the tokens") {
  auto config = shared_config();
  config.balance_weight = 0.5;
  const auto whole = model_case::make<float>(config, 4, 5, 7);
  double loss = 0;
  reference::tensors gradients = reference::zeros_like(whole.weights);
  for (const auto& [first, count] : {std::pair<index_t, index_t>{0, 2}, {2, 3}}) {
    model_case part = whole;
    part.data.sequences = count;
    for (auto* list : {&part.data.inputs, &part.data.labels})
      *list = {list->begin() + first * 7, list->begin() + (first + count) * 7};
    const auto expected = test::expect(part);
    const double share = static_cast<double>(count) / 5.0;
    loss += share * expected.loss;
    for (auto& [name, tensor] : gradients)
      for (std::size_t i = 0; i < tensor.data.size(); ++i)
        tensor.data[i] += share * expected.gradients.at(name).data[i];
  }
  for (const moe::rank_grid grid : grids)
    test::check_step(test::run_model<float>({grid.ranks, grid.expert_parallel, 2, nullptr, true}, config,
                                            whole.weights, whole.tokens()),
                     loss, gradients, loss_bound, gradient_bound);
}

TEST_CASE("D2 and D6: ranks without tokens take part forward and backward, and add zero") {
  const auto c = model_case::make<float>(shared_config(), 5, 1, 9);
  const auto expected = test::expect(c);
  for (const int expert_parallel : {1, 2, 4}) {
    CAPTURE(expert_parallel);
    const auto actual =
        test::run_model<float>({4, expert_parallel, 1, nullptr, true}, c.config, c.weights, c.tokens());
    test::check_step(actual, expected.loss, expected.gradients, loss_bound, gradient_bound);
    int idle = 0;
    for (const test::rank_account& each : actual.accounts) {
      if (each.tokens != 0) continue;
      ++idle;
      CHECK(each.shared_gradient == 0);
      if (expert_parallel == 1) CHECK(each.expert_gradient == 0);
    }
    CHECK(idle == 3);
  }
}

TEST_CASE("D4: a rank has no tokens, three send 4 x 6 rows: 72 arrive") {
  auto config = shared_config();
  config.top_k = 4;
  const auto c = model_case::make<float>(config, 6, 3, 6);
  const auto actual = test::run_model<float>({4, 4, 1, nullptr, true}, config, c.weights, c.tokens());
  CHECK(actual.accounts[0].tokens == 0);
  for (const test::rank_account& each : actual.accounts)
    for (const moe::routing_counts& layer : each.routed) CHECK(rows_to(layer, 12, 0, 12) == 72);
  const auto expected = test::expect(c);
  test::check_step(actual, expected.loss, expected.gradients, loss_bound, gradient_bound);
}

TEST_CASE("D5 and D8: all routes on one rank, none on the others: its dispatch holds what it must, no more") {
  const auto config = shared_config();
  const auto c = model_case::make<float>(config, 7, 4, 9);
  const moe::forced_routing forced(moe::parse_routing("--routing", "all-to-one"), config.experts,
                                   config.top_k);
  const auto one = test::run_model<float>({1, 1, 1, &forced, true}, config, c.weights, c.tokens());
  const auto four = test::run_model<float>({4, 4, 1, &forced, true}, config, c.weights, c.tokens());
  test::check_step(four, one.loss, one.gradients, loss_bound, gradient_bound);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const test::rank_account& each = four.accounts[rank];
    const std::int64_t received = rows_to(each.routed.back(), 12, 3 * static_cast<index_t>(rank), 3);
    CHECK(received == (rank == 0 ? 4 * 9 * 2 : 0));
    CHECK((each.expert_gradient > 0) == (rank == 0));
    // Rows sent; rows, results and their gradients received; and four intermediates of the experts.
    const auto floats = 9 * 2 * config.hidden + received * (3 * config.hidden + 4 * config.intermediate);
    const auto reserved =
        moe::uncapped_dispatch<plateau::host_backend, plateau::thread_communicator, float>::working_set(
            test::config_of(config), {4, 4}, {1, 9})
            .device_bytes();
    CHECK(each.dispatch.bytes == reserved + static_cast<std::size_t>(floats) * sizeof(float));
  }
}

TEST_CASE("experts that repeat within a token: loss and every gradient are those of the reference") {
  auto config = shared_config();
  config.balance_weight = 0.5;
  for (const char* text : {"hot:1,1", "hot:0.95,2", "rotating:0.8,1", "hot:0.1,11"})
    for (const index_t top_k : {2, 3, 5}) {
      CAPTURE(text);
      CAPTURE(top_k);
      config.top_k = top_k;
      const auto c = model_case::make<float>(config, 11, 5, 7);
      const moe::forced_routing forced(moe::parse_routing("--routing", text), config.experts, top_k);
      CHECK(forced.scenario().repeats_experts() == (std::string(text) != "hot:0.95,2" || top_k > 2));
      const test::expectation expected = test::expect(c, &forced);
      for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {3, 3}, {4, 2}})
        test::check_step(test::run_model<float>({grid.ranks, grid.expert_parallel, 1, &forced, true}, config,
                                                c.weights, c.tokens()),
                         expected.loss, expected.gradients, loss_bound, gradient_bound);
    }
}

TEST_CASE("D7: near-identical scores: the counts are exact") {
  auto config = shared_config();
  config.layers = 1;
  auto c = model_case::make<float>(config, 8, 6, 11);
  for (auto* list : {&c.data.inputs, &c.data.labels}) std::fill(list->begin(), list->end(), 3);
  const auto actual = test::run_model<float>({3, 3, 1, nullptr, true}, config, c.weights, c.tokens());
  for (const test::rank_account& each : actual.accounts)
    CHECK(rows_to(each.routed.front(), 12, 0, 12) == 6 * 11 * 2);
}

TEST_CASE("D12: two runs give the same bits") {
  auto config = shared_config();
  config.balance_weight = 0.5;
  config.top_k = 3;
  const auto c = model_case::make<float>(config, 9, 5, 7);
  for (const moe::rank_grid grid : grids) {
    const step_setup setup{grid.ranks, grid.expert_parallel, 2, nullptr, true};
    const auto first = test::run_model<float>(setup, config, c.weights, c.tokens());
    for (int again = 0; again < 3; ++again)
      CHECK(test::same_bits(first, test::run_model<float>(setup, config, c.weights, c.tokens())));
  }
}

TEST_CASE("D16: NaN in the weights of an expert that nobody uses reaches nothing") {
  const auto config = shared_config();
  auto c = model_case::make<float>(config, 10, 4, 5);
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:1,4"), config.experts, config.top_k);
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 2}, {4, 4}}) {
    const step_setup setup{grid.ranks, grid.expert_parallel, 1, &forced, true};
    const auto clean = test::run_model<float>(setup, config, c.weights, c.tokens());
    auto poisoned_weights = c.weights;
    for (index_t layer = 0; layer < config.layers; ++layer)
      for (index_t expert = 4; expert < config.experts; ++expert)
        for (const char* name : {"w1.weight", "w2.weight", "w3.weight"})
          for (double& w : poisoned_weights.at(reference::expert_name(layer, expert, name)).data)
            w = std::numeric_limits<double>::quiet_NaN();
    const auto poisoned = test::run_model<float>(setup, config, poisoned_weights, c.tokens());
    CHECK(test::same_bits(clean, poisoned));
    CHECK(std::isfinite(poisoned.loss));
    for (const double g : poisoned.gradients.at(reference::expert_name(1, 11, "w2.weight")).data)
      CHECK(g == 0);
  }
}

TEST_CASE("the losses of forward alone have the bits of those with backward") {
  const auto c = model_case::make<float>(shared_config(), 11, 5, 70);
  for (const moe::rank_grid grid : grids) {
    const auto both = test::run_model<float>({grid.ranks, grid.expert_parallel, 2, nullptr, true}, c.config,
                                             c.weights, c.tokens());
    const auto alone = test::run_model<float>({grid.ranks, grid.expert_parallel, 2, nullptr, false}, c.config,
                                              c.weights, c.tokens());
    CHECK(both.loss == alone.loss);
  }
}

// With full recompute every product of the forward runs twice, the output projection and the loss's once,
// and a tile of attention scores three times; backward adds two products for each product of the forward.
TEST_CASE("operations of a step: nothing but attention's scores runs forward more than twice") {
  for (const double balance_weight : {0.0, 0.5}) {
    auto config = shared_config();
    config.balance_weight = balance_weight;
    const index_t sequences = 4, context = 150, n = sequences * context;
    const auto c = model_case::make<float>(config, 12, sequences, context);
    const index_t h = config.hidden, keys = config.kv_hidden(), d = config.head_dim();
    index_t tile = 0; // one product of queries and keys, all tiles
    for (index_t q = 0; q < context; q += moe::attention_tile_size{}.queries) {
      const index_t positions = std::min(moe::attention_tile_size{}.queries, context - q);
      for (index_t k = 0; k < q + positions; k += moe::attention_tile_size{}.keys)
        tile += 2 * sequences * config.heads * positions *
                std::min(moe::attention_tile_size{}.keys, context - k) * d;
    }
    const index_t dense = config.layers * (2 * n * h * (2 * h + 2 * keys + config.experts) +
                                           2 * n * config.top_k * 3 * h * config.intermediate);
    const index_t attention = config.layers * tile, head = 2 * n * h * config.vocabulary;
    for (const moe::rank_grid grid : grids) {
      CAPTURE(grid.ranks);
      CAPTURE(grid.expert_parallel);
      for (const bool backward : {false, true}) {
        const auto r = test::run_model<float>({grid.ranks, grid.expert_parallel, 1, nullptr, backward},
                                              config, c.weights, c.tokens());
        index_t flops = 0;
        for (const test::rank_account& each : r.accounts) {
          flops += static_cast<index_t>(each.work.matrix_flops);
          // The counts of each layer, forward; backward asks for nothing.
          CHECK(each.work.host_round_trips == static_cast<std::uint64_t>(config.layers));
          CHECK(each.group.host_exchanges == static_cast<std::uint64_t>(config.layers));
          // Rows to experts and back: forward, recompute, gradients.
          CHECK(each.group.exchanges == static_cast<std::uint64_t>(config.layers * (backward ? 6 : 2)));
        }
        CHECK(flops == (backward ? 4 * dense + 9 * attention + 3 * head : dense + 2 * attention + head));
      }
    }
  }
}
