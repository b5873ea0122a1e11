// SPDX-License-Identifier: Apache-2.0
//
// Whether the model, on ranks of any kind, has the loss and the gradients of a folder of tests/golden: the
// loss to 1e-5, every gradient tensor to 1e-4 of its norm.
#pragma once

#include "golden_case.hpp"
#include "model_on_ranks.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace golden {

template <class Ranks = support::on_threads<>>
void check_case(const std::string& name, int ranks, int expert_parallel, moe::index_t micro_batches,
                const Ranks& on = {}) {
  CAPTURE(name);
  CAPTURE(ranks);
  CAPTURE(expert_parallel);
  CAPTURE(micro_batches);
  const golden_case g = read_case(name);
  const auto result = test::run_model<float>({ranks, expert_parallel, micro_batches, nullptr, true}, g.config,
                                             g.weights, test::tokens_of(g.data), on);
  CHECK(std::abs(result.loss - g.loss) <= 1e-5 * g.loss);
  CHECK(result.gradients.size() == g.gradients.size());
  for (const auto& each : g.gradients) { // no structured binding: clang 14 cannot capture one
    const std::string& tensor = each.first;
    const reference::tensor& expected = each.second;
    CAPTURE(tensor);
    REQUIRE(result.gradients.contains(tensor));
    CHECK(result.gradients.at(tensor).shape == expected.shape);
    CHECK(test::relative_difference(result.gradients.at(tensor).data, expected.data) <= 1e-4);
  }
}

} // namespace golden
