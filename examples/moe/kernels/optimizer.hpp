// SPDX-License-Identifier: Apache-2.0
//
// AdamW with decoupled weight decay (Loshchilov and Hutter 2019) and what decides about its step: the norm of
// all gradients, clipping, and whether anything is not finite. The decision stays on the device, as two
// floats that every element reads: control[0] multiplies the gradient, control[1] != 0 skips the step, and a
// skipped step writes the bits back that were there, so that no host has to wait to know.
#pragma once

#include "types.hpp"

#include <cmath>

namespace moe {

namespace detail {
// Chosen by mask on the bits: a NaN computed on the way leaves no trace, and the loop has no branch.
PLATEAU_HD inline float kept_or_new(std::uint32_t keep, float kept, float updated) {
  const std::uint32_t a = plateau::bit_cast<std::uint32_t>(updated),
                      b = plateau::bit_cast<std::uint32_t>(kept);
  return plateau::bit_cast<float>(a ^ ((a ^ b) & keep));
}
template <class T> PLATEAU_HD T kept_or_new(std::uint32_t keep, T kept, T updated) {
  const std::uint32_t a = updated.bits, b = kept.bits;
  return T::from_bits(static_cast<std::uint16_t>(a ^ ((a ^ b) & keep)));
}
} // namespace detail

// Over elements{n}. The corrections are 1 - beta^step, which the host computes in double, from these very
// betas: 0.999f is not 0.999. Called with a parameter view it also writes the master value rounded to the
// compute type.
struct adamw {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.01f, learning_rate = 1e-3f;
  float correction1 = 1.0f, correction2 = 1.0f;

  PLATEAU_HD void operator()(index_t i,
                             view<const float> gradient, // (n)
                             view<const float> control,  // (2)
                             view<float> master,         // (n), updated, as are the moments
                             view<float> first_moment, view<float> second_moment) const {
    update(i, gradient, control, master, first_moment, second_moment);
  }

  template <class T>
  PLATEAU_HD void operator()(index_t i, view<const float> gradient, view<const float> control,
                             view<float> master, view<float> first_moment, view<float> second_moment,
                             view<T> parameter) const { // (n), updated
    const std::uint32_t keep = keep_mask(control);
    const float value = update(i, gradient, control, master, first_moment, second_moment);
    parameter[i] = detail::kept_or_new(keep, parameter[i], narrow<T>(value));
  }

 private:
  PLATEAU_HD static std::uint32_t keep_mask(view<const float> control) {
    return 0u - static_cast<std::uint32_t>(control[1] != 0.0f);
  }

  PLATEAU_HD float update(index_t i, view<const float> gradient, view<const float> control,
                          view<float> master, view<float> first_moment, view<float> second_moment) const {
    const std::uint32_t keep = keep_mask(control);
    const float g = gradient[i] * control[0], weight = master[i], m = first_moment[i], v = second_moment[i];
    const float new_m = beta1 * m + (1.0f - beta1) * g;
    const float new_v = beta2 * v + (1.0f - beta2) * g * g;
    const float unbias1 = 1.0f / correction1, unbias2 = 1.0f / correction2; // the same for all: hoisted
    const float step = (new_m * unbias1) / (plateau::sqrt(new_v * unbias2) + epsilon);
    const float value =
        detail::kept_or_new(keep, weight, weight - learning_rate * (step + weight_decay * weight));
    first_moment[i] = detail::kept_or_new(keep, m, new_m);
    second_moment[i] = detail::kept_or_new(keep, v, new_v);
    master[i] = value;
    return value;
  }
};

// For T = float, where the master is the parameter: called without the parameter view.
using adamw_fp32 = adamw;

// Over rows{ceil(n / block)}: the squares of a block, summed in double.
struct sum_of_squares {
  index_t block = 65536;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t b, view<const float> gradient, // (n)
                             view<double> partial) const {                      // (ceil(n / block)), written
    const float* g = gradient.p + b * block;
    const index_t rest = gradient.n - b * block, count = rest < block ? rest : block;
    const double sum = team.reduce(count, 0.0, plus{}, [=](index_t i) {
      const double value = static_cast<double>(g[i]);
      return value * value;
    });
    team.once([=] { partial[b] = sum; });
  }
};

// Over rows{1}: what adamw reads. A norm that is not finite skips the step; limit <= 0 turns clipping off.
struct clip_control {
  float limit = 1.0f;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t,
                             view<const double> squares, // any number of partial sums, added in order
                             view<float> control,        // (2), written
                             view<float> norm) const {   // (1), written
    const float largest = limit;
    team.once([=] {
      double total = 0.0;
      for (index_t i = 0; i < squares.n; ++i) total += squares[i];
      const float root = static_cast<float>(::sqrt(total));
      const bool finite = plateau::is_finite(root);
      const float factor = largest / (root + 1e-6f);
      norm[0] = root;
      control[0] = finite && largest > 0.0f && factor < 1.0f ? factor : 1.0f;
      control[1] = finite ? 0.0f : 1.0f;
    });
  }
};

// Over rows{1}: the sum in double, of the losses of a step.
struct sum_values {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t, view<const float> values, // (n)
                             view<double> sum) const {                      // (1), written
    const float* from = values.p;
    const double total =
        team.reduce(values.n, 0.0, plus{}, [=](index_t i) { return static_cast<double>(from[i]); });
    team.once([=] { sum[0] = total; });
  }
};

} // namespace moe
