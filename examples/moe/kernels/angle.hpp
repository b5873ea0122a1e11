// SPDX-License-Identifier: Apache-2.0
//
// Cosine and sine of a rotary angle, computed in double and rounded to float: a position of a million leaves
// float no digits behind the point. Made of additions, multiplications and integer operations only, so that a
// loop over a head vectorises; with the library's pow, cos and sin the angles would cost more than everything
// else that attention does per element. On a CUDA device they are the device's own functions. In double the
// error stays below 1e-12 for angles up to 1e4 and grows with the angle as its own rounding does.
#pragma once

#include "types.hpp"

#include <cmath>

namespace moe {

struct rotation {
  float cosine, sine;
};

namespace detail {

// e^x for -700 < x < 700.
PLATEAU_HD inline double exp_in_double(double x) {
#if defined(__CUDA_ARCH__)
  return ::exp(x);
#else
  // x = n ln 2 + r. Adding 1.5 * 2^52 rounds to the integer n and leaves it in the low bits of the sum.
  const double shifted = x * 1.4426950408889634 + 0x1.8p+52;
  const double n = shifted - 0x1.8p+52;
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 479001600; // Taylor's series, |r| <= ln(2) / 2
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return plateau::bit_cast<double>(plateau::bit_cast<std::uint64_t>(p) +
                                   (plateau::bit_cast<std::uint64_t>(shifted) << 52));
#endif
}

// For |angle| < 2^31.
PLATEAU_HD inline rotation rotation_by(double angle) {
#if defined(__CUDA_ARCH__)
  return {static_cast<float>(::cos(angle)), static_cast<float>(::sin(angle))};
#else
  const double shifted = angle * 0.6366197723675814 + 0x1.8p+52; // quarter turns
  const double n = shifted - 0x1.8p+52;
  const double r = (angle - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
  const double r2 = r * r;
  double c = 1.0 / 479001600, s = 1.0 / 6227020800; // Taylor's series, |r| <= pi / 4
  c = c * r2 - 1.0 / 3628800;
  s = s * r2 - 1.0 / 39916800;
  c = c * r2 + 1.0 / 40320;
  s = s * r2 + 1.0 / 362880;
  c = c * r2 - 1.0 / 720;
  s = s * r2 - 1.0 / 5040;
  c = c * r2 + 1.0 / 24;
  s = s * r2 + 1.0 / 120;
  c = c * r2 - 0.5;
  s = s * r2 - 1.0 / 6;
  c = c * r2 + 1.0;
  s = s * r2 * r + r;
  const std::uint64_t quarters = plateau::bit_cast<std::uint64_t>(shifted);
  const std::uint64_t a = plateau::bit_cast<std::uint64_t>(c), b = plateau::bit_cast<std::uint64_t>(s);
  const std::uint64_t exchanged = (a ^ b) & (std::uint64_t{0} - (quarters & 1));
  const std::uint64_t cosine = a ^ exchanged ^ (((quarters + 1) & 2) << 62);
  const std::uint64_t sine = b ^ exchanged ^ ((quarters & 2) << 62);
  return {static_cast<float>(plateau::bit_cast<double>(cosine)),
          static_cast<float>(plateau::bit_cast<double>(sine))};
#endif
}

} // namespace detail

// The angles of a position: pair e of a head turns by position * theta^(-2 e / head_size). theta >= 1,
// positions below 2^31.
struct rotary_angles {
  double position, log_step; // log_step: of the ratio of one pair's angle to that of the pair before

  PLATEAU_HD static rotary_angles at(index_t position, index_t head_size, double theta) {
    return {static_cast<double>(position), -2.0 * ::log(theta) / static_cast<double>(head_size)};
  }
  PLATEAU_HD rotation operator()(index_t pair) const {
    // By way of 32 bits: vectors convert 64-bit integers only with AVX-512.
    const double e = static_cast<double>(static_cast<std::int32_t>(pair));
    return detail::rotation_by(position * detail::exp_in_double(e * log_step));
  }
};

} // namespace moe
