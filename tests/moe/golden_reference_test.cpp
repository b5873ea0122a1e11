// SPDX-License-Identifier: Apache-2.0
//
// The float64 reference is Mixtral: on both golden cases it gives the loss that transformers gave, to the
// last digits of a double, and every gradient to the rounding of its float32 storage.
#include "golden_case.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

double norm(const reference::vec& v) {
  double squares = 0;
  for (const double value : v) squares += value * value;
  return std::sqrt(squares);
}

double distance(const reference::vec& a, const reference::vec& b) {
  REQUIRE(a.size() == b.size());
  reference::vec difference = a;
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

} // namespace

TEST_CASE("the reference reproduces loss and gradients of transformers' Mixtral") {
  for (const std::string& name : golden::case_names) {
    CAPTURE(name);
    const golden::golden_case golden = golden::read_case(name);
    const reference::transformer model(golden.config, golden.weights);
    const reference::transformer_result result = model.forward(golden.data);
    CHECK(std::abs(result.cross_entropy / golden.cross_entropy - 1) < 1e-12);
    CHECK(std::abs(result.balance / golden.balance - 1) < 1e-12);
    CHECK(std::abs(result.loss / golden.loss - 1) < 1e-12);

    const reference::tensors gradients = model.backward(golden.data, result);
    REQUIRE(gradients.size() == golden.gradients.size());
    double largest = 0;
    for (const auto& entry : golden.gradients) {
      const std::string& parameter = entry.first;
      const reference::tensor& gradient = entry.second;
      CAPTURE(parameter);
      REQUIRE(gradients.at(parameter).shape == gradient.shape);
      const double size = norm(gradient.data), off = distance(gradients.at(parameter).data, gradient.data);
      if (size == 0) {
        CHECK(off == 0); // an expert that no row was routed to
      } else {
        CHECK(off / size < 6e-8); // half an ulp of float32, in every element
        largest = std::max(largest, off / size);
      }
    }
    MESSAGE(name, ": loss off by ", result.loss / golden.loss - 1, ", gradients by at most ", largest,
            " of their norm");
  }
}

TEST_CASE("the golden cases cover what they are for") {
  const golden::golden_case untied = golden::read_case("untied_top2"),
                            tied = golden::read_case("tied_top1_balance");
  CHECK(untied.config.heads > untied.config.kv_heads);
  CHECK_FALSE(untied.config.tied);
  CHECK(untied.config.top_k == 2);
  CHECK(untied.config.balance_weight == 0);
  CHECK(tied.config.heads == tied.config.kv_heads);
  CHECK(tied.config.tied);
  CHECK(tied.config.top_k == 1);
  CHECK(tied.config.balance_weight > 0);

  // 1, 2 and 4 ranks can share the sequences and the experts, and no rounding of float32 changes a route
  for (const golden::golden_case& golden : {untied, tied}) {
    CHECK(golden.data.sequences % 4 == 0);
    CHECK(golden.config.experts % 4 == 0);
    const reference::transformer_result result =
        reference::transformer(golden.config, golden.weights).forward(golden.data);
    for (const reference::layer_state& layer : result.layers) {
      const reference::routing& r = layer.routes;
      for (reference::index row = 0; row < r.rows; ++row) {
        reference::vec p(r.probability.begin() + row * r.experts,
                         r.probability.begin() + (row + 1) * r.experts);
        std::sort(p.rbegin(), p.rend());
        CHECK(p[static_cast<std::size_t>(r.top_k) - 1] - p[static_cast<std::size_t>(r.top_k)] > 1e-3);
      }
    }
  }
}

TEST_CASE("pooling over layers is what transformers does, and differs from the mean over layers") {
  golden::golden_case golden = golden::read_case("tied_top1_balance");
  golden.config.balance = reference::balance_form::per_layer;
  const double per_layer = reference::transformer(golden.config, golden.weights).forward(golden.data).balance;
  CHECK(std::abs(per_layer / golden.balance - 1) > 1e-2);
}
