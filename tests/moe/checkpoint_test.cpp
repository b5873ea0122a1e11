// SPDX-License-Identifier: Apache-2.0
//
// The model whose inputs of layers are parked: loss and gradients have the bits that they have with all of
// them on the device, whatever the host budget; the device holds two of them at any depth, and what was
// promised; and nothing is computed more often.
#include "chosen_boundaries.hpp"
#include "model_cases.hpp"
#include "unflattened.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <string>

using moe::index_t;
using test::model_case, test::step_setup;

namespace {

struct maybe_parked : moe::unflattened {
  template <class Backend, class T> using boundaries = moe::chosen_boundaries<Backend, T>;
};

reference::transformer_config config_of(index_t layers, index_t hidden = 12) {
  reference::transformer_config c;
  c.vocabulary = 17;
  c.hidden = hidden;
  c.layers = layers;
  c.heads = 2;
  c.kv_heads = 1;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}
template <class T>
test::step_result run(step_setup setup, const model_case& c, bool parked,
                      index_t budget = plateau::offload_shape::no_limit) {
  setup.flatten.checkpoint = parked;
  setup.checkpoint.host_budget_bytes = budget;
  return test::run_model_of<maybe_parked, T>(setup, c.config, c.weights, c.tokens());
}
template <class T> void check_bits() {
  const auto c = model_case::make<T>(config_of(5), 3, 4, 7);
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {3, 1}, {4, 2}})
    for (const index_t micro : {1, 2}) {
      const step_setup setup{grid.ranks, grid.expert_parallel, micro, nullptr, true};
      const auto expected = run<T>(setup, c, false);
      for (const index_t budget : {index_t{0}, index_t{3000}, plateau::offload_shape::no_limit}) {
        CAPTURE(grid.ranks);
        CAPTURE(micro);
        CAPTURE(budget);
        CHECK(test::same_bits(run<T>(setup, c, true, budget), expected));
      }
    }
}

} // namespace

TEST_CASE("loss and gradients have the bits that they have with every boundary on the device") {
  check_bits<float>();
  check_bits<plateau::bfloat16>();
}

TEST_CASE(
    "two boundaries on the device at any depth, what was promised, and nothing is computed more often") {
  for (const index_t layers : {4, 24}) {
    CAPTURE(layers);
    const auto c = model_case::make<float>(config_of(layers, 64), 3, 2, 4);
    const step_setup setup{1, 1, 1, nullptr, true};
    const auto plain = run<float>(setup, c, false);
    const std::size_t boundary = 8 * 64 * sizeof(float);
    std::size_t last = std::numeric_limits<std::size_t>::max();
    for (index_t fit = 0; fit <= layers + 1; ++fit) {
      if (layers > 4 && fit % 8 != 1) continue;
      const auto parked = run<float>(setup, c, true, fit * static_cast<index_t>(boundary));
      const auto& a = parked.accounts.front();
      const auto kept = static_cast<std::size_t>(fit > 2 ? layers + 1 - fit + 2 : layers + 1);
      CHECK(a.checkpoint.bytes == kept * boundary);
      CHECK((fit > 2 && layers == 4 ? a.checkpoint.bytes < last : a.checkpoint.bytes <= last));
      last = a.checkpoint.bytes;
      CHECK(a.parked.bytes == (fit > 2 ? static_cast<std::size_t>(fit) * boundary : 0));
      CHECK(a.work.matrix_products == plain.accounts.front().work.matrix_products);
      CHECK(a.work.matrix_flops == plain.accounts.front().work.matrix_flops);
      CHECK(a.work.host_round_trips == plain.accounts.front().work.host_round_trips);
      bool promised = false;
      for (const moe::peak_promise& p : a.promises)
        if (p.of == plateau::tag::checkpoint) {
          promised = true;
          CHECK(p.most.device_bytes == a.checkpoint.bytes);
          CHECK(p.most.pinned_bytes == a.parked.bytes);
        }
      CHECK(promised);
    }
    CHECK(last == 2 * boundary);
  }
}
