// SPDX-License-Identifier: Apache-2.0
//
// Shapes, weights and batches for tests of the whole model, what the float64 reference makes of them, and how
// far gradients are from those. Nothing here compiles the model.
#pragma once

#include "reference/transformer.hpp"
#include "routing_scenario.hpp"

#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace test {

namespace pl = plateau;

// The tokens of a reference batch, with the last label at the end of each sequence.
inline std::vector<std::vector<std::int32_t>> tokens_of(const reference::batch& b) {
  std::vector<std::vector<std::int32_t>> out;
  for (reference::index s = 0; s < b.sequences; ++s) {
    std::vector<std::int32_t> row;
    for (reference::index t = 0; t < b.length; ++t)
      row.push_back(static_cast<std::int32_t>(b.inputs[static_cast<std::size_t>(s * b.length + t)]));
    row.push_back(static_cast<std::int32_t>(b.labels[static_cast<std::size_t>((s + 1) * b.length - 1)]));
    out.push_back(std::move(row));
  }
  return out;
}

// A shape whose numbers divide as they must and are odd otherwise.
inline reference::transformer_config random_config(std::uint64_t seed, reference::index layers) {
  std::mt19937_64 engine(seed);
  const auto between = [&](reference::index low, reference::index high) {
    return low + static_cast<reference::index>(engine() % static_cast<std::uint64_t>(high - low + 1));
  };
  reference::transformer_config c;
  c.layers = layers;
  c.kv_heads = between(1, 3);
  c.heads = c.kv_heads * between(1, 3);
  c.hidden = c.heads * 2 * between(1, 4);
  c.experts = between(4, 7);
  c.top_k = between(1, 3);
  c.intermediate = between(5, 21);
  c.vocabulary = between(13, 67);
  c.rope_theta = 1e4;
  c.tied = between(0, 1) == 1;
  c.balance_weight = 0.25 * static_cast<double>(between(0, 1));
  return c;
}

inline reference::batch random_batch(const reference::transformer_config& c, std::uint64_t seed,
                                     reference::index sequences, reference::index context) {
  std::mt19937_64 engine(seed);
  std::vector<reference::index> tokens(static_cast<std::size_t>(sequences * (context + 1)));
  for (reference::index& each : tokens)
    each = static_cast<reference::index>(engine() % static_cast<std::uint64_t>(c.vocabulary));
  return reference::next_token_batch(tokens, sequences, context);
}

// A case, with the weights rounded to what the model of type T is given.
struct model_case {
  reference::transformer_config config;
  reference::tensors weights;
  reference::batch data;

  template <class T>
  static model_case make(reference::transformer_config config, std::uint64_t seed, reference::index sequences,
                         reference::index context) {
    model_case out{config, reference::random_parameters(config, seed),
                   random_batch(config, seed + 1, sequences, context)};
    for (auto& [name, tensor] : out.weights)
      for (double& value : tensor.data)
        value = static_cast<double>(pl::widen(pl::narrow<T>(static_cast<float>(value))));
    return out;
  }
  std::vector<std::vector<std::int32_t>> tokens() const { return tokens_of(data); }
};

struct expectation {
  double loss = 0;
  reference::tensors gradients;
  // By how much the least preferred of a row's chosen experts was preferred to the next one, as a difference
  // of logits, at its smallest: what an error must reach to change a route.
  double margin = std::numeric_limits<double>::infinity();
};

inline expectation expect(const model_case& c, const moe::forced_routing* forced = nullptr) {
  reference::transformer model(c.config, c.weights);
  if (forced != nullptr)
    model.force([forced](reference::index layer, reference::index row, reference::index slot) {
      return forced->expert(layer, row, slot);
    });
  const reference::transformer_result result = model.forward(c.data);
  expectation out{result.loss, model.backward(c.data, result)};
  for (const reference::layer_state& layer : result.layers)
    for (reference::index row = 0; row < layer.routes.rows; ++row) {
      const auto first = layer.routes.probability.begin() + row * c.config.experts;
      std::vector<double> p(first, first + c.config.experts);
      std::sort(p.rbegin(), p.rend());
      const auto k = static_cast<std::size_t>(c.config.top_k);
      if (k < p.size()) out.margin = std::min(out.margin, std::log(p[k - 1] / p[k]));
    }
  return out;
}

inline double norm_of(const reference::tensors& all) {
  double squares = 0;
  for (const auto& [name, tensor] : all)
    for (const double value : tensor.data) squares += value * value;
  return std::sqrt(squares);
}

// Every gradient tensor by the norm of its difference over its norm. A tensor that is zero but for
// cancellation (a router with top-1 gates, keys of a single position) is held to a thousandth of the whole.
inline double worst_gradient(const reference::tensors& actual, const reference::tensors& expected) {
  const double whole = norm_of(expected);
  double worst = actual.size() == expected.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, e] : expected) {
    REQUIRE(actual.contains(name));
    const reference::tensor& a = actual.at(name);
    REQUIRE(a.shape == e.shape);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < e.data.size(); ++i) {
      difference += (a.data[i] - e.data[i]) * (a.data[i] - e.data[i]);
      norm += e.data[i] * e.data[i];
    }
    const double share = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3 * whole);
    if (!(share <= worst)) worst = share;
  }
  return worst;
}

} // namespace test
