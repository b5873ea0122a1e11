// SPDX-License-Identifier: Apache-2.0
//
// What AdamW is told: settings of a group of tensors, which may change from step to step, and the factors of
// a tensor's step that follow from them and from how often that tensor has been updated. The count belongs to
// the tensor and has 64 bits: one that had no gradient for a while is corrected for its own steps.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/math.hpp>
#include <plateau/staging/adamw_kernel.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace plateau::inline v0 {

// In double, so that 0.999 is 0.999.
struct adamw_group {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8; // added to the root after its correction; 0 makes 0/0 where no gradient ever was
  double weight_decay = 0.01; // a step takes learning_rate * weight_decay of the value that was there

  // Throws config_error, with the number of the group, the name and the value, for what cannot be.
  void check(index_t group) const {
    const auto refuse = [group](const char* name, double value, const char* expected) {
      char number[32];
      std::snprintf(number, sizeof number, "%.17g", value);
      throw config_error("plateau: adamw: " + std::string(name) + " of group " + std::to_string(group) +
                         " is " + number + "; expected " + expected);
    };
    const auto at_least_0 = [&](const char* name, double value) {
      if (!is_finite(value) || value < 0) refuse(name, value, "a finite number of at least 0");
    };
    const auto beta = [&](const char* name, double value) {
      if (!(value >= 0 && value < 1)) refuse(name, value, "at least 0 and less than 1");
    };
    at_least_0("learning_rate", learning_rate);
    beta("beta1", beta1);
    beta("beta2", beta2);
    at_least_0("epsilon", epsilon);
    at_least_0("weight_decay", weight_decay);
  }
};

namespace detail::adamw {

// beta^step by squaring: products only, so that the bits are the same on host and device. Off by at most
// step / 2^53 of itself, which is much only where beta^step is nothing beside 1.
PLATEAU_HD inline double power(double beta, std::int64_t step) {
  double out = 1.0;
  for (double square = beta; step > 0; step >>= 1) {
    if ((step & 1) != 0) out = out * square;
    square = square * square;
  }
  return out;
}
// c - a b, rounded once.
PLATEAU_HD inline double minus_product(double c, double a, double b) {
#if defined(__CUDA_ARCH__)
  return ::fma(-a, b, c);
#else
  return __builtin_fma(-a, b, c);
#endif
}

} // namespace detail::adamw

// The factors of a tensor's step number `step`, from 1. Everything is computed in double and rounded once.
PLATEAU_HD inline adamw_factors adamw_factors_of(const adamw_group& group, std::int64_t step,
                                                 bool decays = true) {
  using detail::adamw::power, detail::adamw::minus_product;
  adamw_factors f;
  f.beta1 = static_cast<float>(group.beta1);
  f.rest1 = static_cast<float>(1.0 - group.beta1);
  f.beta2 = static_cast<float>(group.beta2);
  f.rest2 = static_cast<float>(1.0 - group.beta2);
  f.root_scale = static_cast<float>(1.0 / ::sqrt(1.0 - power(group.beta2, step)));
  f.epsilon = static_cast<float>(group.epsilon);
  f.step_size = static_cast<float>(group.learning_rate / (1.0 - power(group.beta1, step)));
  f.kept = decays ? static_cast<float>(minus_product(1.0, group.learning_rate, group.weight_decay)) : 1.0f;
  return f;
}

} // namespace plateau::inline v0
