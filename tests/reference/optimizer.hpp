// SPDX-License-Identifier: Apache-2.0
//
// What happens to gradients once they are there, in float64: global norm, clipping, AdamW with decoupled
// weight decay, and a learning rate that warms up and follows a cosine down.
#pragma once

#include "tensor.hpp"

#include <algorithm>

namespace reference {

inline double global_norm(const tensors& all) {
  double squares = 0;
  for (const auto& [name, t] : all)
    for (const double value : t.data) squares += value * value;
  return std::sqrt(squares);
}

/// What gradients of this norm are multiplied by, so that their norm is at most `largest`; 0 turns clipping
/// off.
inline double clip_factor(double norm, double largest) {
  return largest > 0 && norm > largest ? largest / norm : 1.0;
}

struct adamw_options {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};

/// One step in place; `step` counts from 1. The weight decays by learning_rate * weight_decay of its value
/// before the step; epsilon is added to the square root after the bias correction.
inline void adamw(vec& weight, const vec& gradient, vec& first_moment, vec& second_moment, index step,
                  const adamw_options& o) {
  require(step >= 1, "AdamW counts its steps from 1");
  require_size(gradient, static_cast<index>(weight.size()), "the gradient");
  require_size(first_moment, static_cast<index>(weight.size()), "the first moment");
  require_size(second_moment, static_cast<index>(weight.size()), "the second moment");
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(step));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double g = gradient[i];
    first_moment[i] = o.beta1 * first_moment[i] + (1.0 - o.beta1) * g;
    second_moment[i] = o.beta2 * second_moment[i] + (1.0 - o.beta2) * g * g;
    const double m = first_moment[i] / correction1, v = second_moment[i] / correction2;
    weight[i] -= o.learning_rate * (m / (std::sqrt(v) + o.epsilon) + o.weight_decay * weight[i]);
  }
}

/// The rate of step 0, 1, ...: peak * (step + 1) / warmup while step < warmup, then half a cosine from peak
/// at step `warmup` down to `floor` at step `total`, where it stays.
inline double cosine_rate(index step, index warmup, index total, double peak, double floor = 0.0) {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= total) return floor;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(3.14159265358979323846 * done));
}

} // namespace reference
