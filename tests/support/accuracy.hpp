// SPDX-License-Identifier: Apache-2.0
//
// When a computed tensor is right: against float64 values from the same inputs, its root mean square error
// and its largest error are at most twice those of the best any computation can do, the exact value rounded
// once, plus one unit in the last place at the tensor's root mean square. That is stricter than a comparison
// with some other computation of the same precision. A tensor that should be zero must be exactly zero.
#pragma once

#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

namespace support {

// The distance between neighbouring values of T at the size of `value`.
template <class T> double unit_in_last_place(double value) {
  constexpr int digits = plateau::scalar_kind_of<T> == plateau::scalar_kind::bf16   ? 8
                         : plateau::scalar_kind_of<T> == plateau::scalar_kind::fp16 ? 11
                                                                                    : 24;
  return value == 0 ? 0 : std::ldexp(1.0, std::ilogb(std::fabs(value)) + 1 - digits);
}

struct deviation {
  double rms = 0, largest = 0;
};

template <class Actual> deviation deviation_of(const std::vector<double>& expected, Actual actual) {
  deviation out;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(actual(i) - expected[i]);
    out.rms += error * error;
    // A NaN fails every later comparison.
    out.largest = error > out.largest || !(error == error) ? error : out.largest;
  }
  out.rms = std::sqrt(out.rms / static_cast<double>(std::max<std::size_t>(expected.size(), 1)));
  return out;
}

// A GPU groups sums otherwise than the host, and what regroups a sum may be twice as far off
// (docs/numerics.md). Where results are narrower than the sums, that is hidden by the last rounding.
#if defined(__CUDACC__)
inline constexpr double regrouped = 2;
#else
inline constexpr double regrouped = 1;
#endif

// `slack` multiplies what is allowed, for chains of roundings that the rule above does not describe.
template <class T>
void check_accurate(const std::vector<T>& actual, const std::vector<double>& expected, double slack = 1) {
  REQUIRE(actual.size() == expected.size());
  const deviation found = deviation_of(
      expected, [&](std::size_t i) { return static_cast<double>(static_cast<float>(actual[i])); });
  const deviation best = deviation_of(expected, [&](std::size_t i) {
    return static_cast<double>(static_cast<float>(static_cast<T>(static_cast<float>(expected[i]))));
  });
  const double size = deviation_of(expected, [](std::size_t) { return 0.0; }).rms;
  const double unit = unit_in_last_place<T>(size);
  if (std::is_same_v<T, float> && slack > 1) slack *= regrouped;
  CHECK(found.rms <= slack * (2 * best.rms + unit));
  CHECK(found.largest <= slack * (2 * best.largest + unit));
}

} // namespace support
