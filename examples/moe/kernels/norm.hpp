// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm (Zhang and Sennrich 2019) as Mixtral has it: y = gain * x / sqrt(mean(x^2) + epsilon), row by row,
// and its backward. The gradient of the gain is a sum over rows, which belongs to the backend's column sum:
// the backward kernel writes the summands.
#pragma once

#include "types.hpp"

namespace moe {

namespace detail {
// 1 / sqrt(mean(x^2) + epsilon), the same on all members.
template <class Team, class T>
PLATEAU_HD float inverse_rms(Team& team, const T* x, index_t n, float epsilon) {
  const float squares = team.reduce(n, 0.0f, plus{}, [x](index_t i) {
    const float value = widen(x[i]);
    return value * value;
  });
  return plateau::rsqrt(squares / static_cast<float>(n) + epsilon);
}
} // namespace detail

// Over rows{n}.
struct rms_norm {
  float epsilon = 1e-5f;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const T> x,    // (n, hidden)
                             view<const T> gain, // (hidden)
                             tile<T> y) const {  // (n, hidden), written
    const T* from = x.row(row);
    const T* weight = gain.p;
    T* to = y.row(row);
    const float inverse = detail::inverse_rms(team, from, x.cols, epsilon);
    team.for_each(x.cols, [=](index_t i) { to[i] = narrow<T>(widen(from[i]) * inverse * widen(weight[i])); });
  }
};

// Over rows{n}. Adds to dx, where the gradient of the residual path is already, and rounds that sum once.
struct rms_norm_backward {
  float epsilon = 1e-5f;

  template <class Team, class T>
  PLATEAU_HD void
  operator()(Team& team, index_t row,
             tile<const T> x,                // (n, hidden), what the forward took
             view<const T> gain,             // (hidden)
             tile<const T> dy,               // (n, hidden)
             tile<T> dx,                     // (n, hidden), added to
             tile<float> gain_terms) const { // (n, hidden), written: their column sum is dgain
    const index_t n = x.cols;
    const T* from = x.row(row);
    const T* weight = gain.p;
    const T* upstream = dy.row(row);
    T* to = dx.row(row);
    float* terms = gain_terms.row(row);
    const float inverse = detail::inverse_rms(team, from, n, epsilon);
    // What dy * gain has in the direction of x; the norm removes it.
    const float along = team.reduce(
        n, 0.0f, plus{}, [=](index_t i) { return widen(upstream[i]) * widen(weight[i]) * widen(from[i]); });
    const float share = along * inverse * inverse / static_cast<float>(n);
    team.for_each(n, [=](index_t i) {
      const float value = widen(from[i]), d = widen(upstream[i]);
      terms[i] = d * value * inverse;
      to[i] = narrow<T>(widen(to[i]) + inverse * (d * widen(weight[i]) - value * share));
    });
  }
};

} // namespace moe
