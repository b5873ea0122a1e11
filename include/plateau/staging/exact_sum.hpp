// SPDX-License-Identifier: Apache-2.0
//
// A sum of doubles without rounding: a number in digits of 32 bits, each kept in 64, so that adding needs no
// carries and the order of the terms does not matter. What blocks of a long list sum to can be added bucket
// by bucket, rank by rank, in any grouping, and gives the same bits.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace plateau::inline v0 {

// For terms of at least 0. Exact for those that are 0 or between 2^-300 and 2^352, as sums of squares of
// floats are; what is not finite, or beyond, is counted apart. Up to 2^28 terms.
struct exact_sum {
  static constexpr index_t digits = 24;
  static constexpr index_t words = digits + 1; // the last one counts the terms that were not finite
  static constexpr int lowest = -352;          // digit 0 counts units of 2^lowest

  PLATEAU_HD static void add(std::int64_t* sum, double term) {
    const auto bits = plateau::bit_cast<std::uint64_t>(term);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent == 0) return; // 0, or far below what a square can be
    const int at = exponent - 1075 - lowest;
    if (exponent == 0x7ff || at + 53 > 32 * static_cast<int>(digits - 2)) {
      ++sum[digits];
      return;
    }
    std::uint64_t mantissa = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    if (at < 0) mantissa = at < -52 ? 0 : mantissa >> -at;
    const int digit = at < 0 ? 0 : at / 32, shift = at < 0 ? 0 : at % 32;
    const std::uint64_t lower = (mantissa & 0xffffffffu) << shift, upper = (mantissa >> 32) << shift;
    sum[digit] += static_cast<std::int64_t>(lower & 0xffffffffu);
    sum[digit + 1] += static_cast<std::int64_t>((lower >> 32) + (upper & 0xffffffffu));
    sum[digit + 2] += static_cast<std::int64_t>(upper >> 32);
  }
  // Makes every digit but the last smaller than 2^32, as they must be before sums of many are added.
  PLATEAU_HD static void carry(std::int64_t* sum) {
    for (index_t i = 0; i + 1 < digits; ++i) {
      sum[i + 1] += sum[i] >> 32;
      sum[i] &= 0xffffffff;
    }
  }
  // A sum that was carried, rounded: always the same way. NaN when a term was not finite.
  PLATEAU_HD static double value(const std::int64_t* sum) {
    if (sum[digits] != 0) return plateau::bit_cast<double>(std::uint64_t{0x7ff8000000000000u});
    index_t top = digits - 1;
    while (top > 2 && sum[top] == 0) --top;
    double out = 0;
    for (index_t i = top; i > top - 3; --i) out = out * 0x1p32 + static_cast<double>(sum[i]);
    for (index_t i = 2; i < top; ++i) out *= 0x1p32; // exact, as is the next: powers of two
    return out * 0x1p-176 * 0x1p-176;
  }
};
static_assert(exact_sum::lowest == -352);

} // namespace plateau::inline v0
