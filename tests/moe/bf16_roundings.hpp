// SPDX-License-Identifier: Apache-2.0
//
// How far the gradients of the model in bf16 may be from those of the float64 reference: as far as roundings
// of the weights move the exact ones, a few times over.
#pragma once

#include "model_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace test {

// One rounding to bf16 moves a value by at most 2^-9 of itself.
inline constexpr double bf16_unit = 0x1p-9;

// How far the exact gradients of a case move when every weight moves at random by up to one rounding: what
// roundings of that size may do, tensor by tensor, wherever terms cancel.
inline std::map<std::string, double> sensitivity(const model_case& c, const reference::tensors& gradients) {
  constexpr int trials = 4;
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> move(-bf16_unit, bf16_unit);
  std::map<std::string, double> squares;
  for (int trial = 0; trial < trials; ++trial) {
    model_case moved = c;
    for (auto& [name, tensor] : moved.weights)
      for (double& value : tensor.data) value *= 1 + move(engine);
    for (const auto& [name, tensor] : expect(moved).gradients)
      for (std::size_t i = 0; i < tensor.data.size(); ++i) {
        const double d = tensor.data[i] - gradients.at(name).data[i];
        squares[name] += d * d / trials;
      }
  }
  for (auto& [name, value] : squares) value = std::sqrt(value);
  return squares;
}

// The model rounds at least as many tensors of activations in each layer as there are weights, forward, in
// the recomputation and backward: its error is a few times what one move of the weights does (3.3 measured).
// A gradient that is zero but for cancellation is held to a thousandth of a rounding of the whole.
inline constexpr double allowed_moves = 6;

inline double worst_moves(const step_result& actual, const model_case& c, const expectation& expected) {
  const auto moves = sensitivity(c, expected.gradients);
  const double floor = 1e-3 * bf16_unit * norm_of(expected.gradients);
  double worst = 0;
  for (const auto& [name, e] : expected.gradients) {
    const reference::tensor& a = actual.gradients.at(name);
    double squares = 0;
    for (std::size_t i = 0; i < e.data.size(); ++i)
      squares += (a.data[i] - e.data[i]) * (a.data[i] - e.data[i]);
    const double ratio = std::sqrt(squares) / std::max(moves.at(name), floor);
    if (!(ratio <= worst)) worst = ratio;
  }
  return worst;
}

inline reference::transformer_config bf16_config(std::uint64_t seed, moe::index_t layers) {
  auto config = random_config(seed, layers);
  config.hidden = config.heads * 6;
  return config;
}

} // namespace test
