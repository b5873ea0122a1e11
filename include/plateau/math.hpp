// SPDX-License-Identifier: Apache-2.0
//
// The functions that kernels call per element, made of additions, multiplications and integer operations
// only, so that every loop around them vectorises at plain -O2 whatever the compiler thinks of errno, NaN or
// traps: the library's `expf` and `sqrtf` keep such a loop scalar. On a CUDA device they are the device's own
// functions. Results differ in the last place between targets with and without fused multiply-add; the bounds
// hold for both. The order of additions and the brackets are part of the functions: config.hpp refuses the
// flags that let GCC change them, and PLATEAU_AS_WRITTEN forbids it to clang, which defines no macro for
// them.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__clang__)
#define PLATEAU_AS_WRITTEN _Pragma("clang fp reassociate(off)")
#else
#define PLATEAU_AS_WRITTEN
#endif

namespace plateau::inline v0 {

// Finiteness is tested on bits: no compiler flag can fold these to a constant.
PLATEAU_HD constexpr bool is_finite(float x) noexcept {
  return (bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}
PLATEAU_HD constexpr bool is_nan(float x) noexcept {
  return (bit_cast<std::uint32_t>(x) & 0x7fffffffu) > 0x7f800000u;
}
PLATEAU_HD constexpr bool is_finite(double x) noexcept {
  return (bit_cast<std::uint64_t>(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}
PLATEAU_HD constexpr bool is_nan(double x) noexcept {
  return (bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

// Where a running maximum starts. Not -infinity: a first rescale would subtract infinity from infinity, which
// is NaN.
template <floating_scalar T> PLATEAU_HD constexpr T lowest() noexcept {
  if constexpr (scalar_kind_of<T> == scalar_kind::bf16)
    return bfloat16::from_bits(0xff7f);
  else if constexpr (scalar_kind_of<T> == scalar_kind::fp16)
    return half::from_bits(0xfbff);
  else if constexpr (scalar_kind_of<T> == scalar_kind::fp32)
    return -0x1.fffffep+127f;
  else
    return -0x1.fffffffffffffp+1023;
}

namespace detail {

PLATEAU_HD inline float exp(float x) noexcept {
  PLATEAU_AS_WRITTEN
#if defined(__CUDA_ARCH__)
  return ::expf(x);
#else
  // x = n ln 2 + r. Adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits of the sum. The
  // upper part of ln 2 has 15 significant bits, so that its product with n is exact with and without fma.
  const float shifted = x * 0x1.715476p+0f + 0x1.8p+23f;
  const float n = shifted - 0x1.8p+23f;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  // 1 + r + r^2 q(r): least largest relative error (3.6e-9) for |r| <= ln(2)/2.
  float q = 0x1.6a23dp-10f;
  q = q * r + 0x1.123a2p-7f;
  q = q * r + 0x1.5558f2p-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const float p = (q * r * r + r) + 1.0f;
  // Times 2^n, by adding n to the exponent. Out of range that sum is meaningless, and masked away.
  const std::uint32_t scaled = bit_cast<std::uint32_t>(p) + (bit_cast<std::uint32_t>(shifted) << 23);
  const std::uint32_t above = detail::mask(x > 0x1.62e42ep+6f);
  const std::uint32_t below = detail::mask(x < -0x1.5d58ap+6f);
  const std::uint32_t nan = detail::mask(x != x);
  const std::uint32_t out = (scaled & ~(above | below)) | (above & 0x7f800000u) | nan;
  return bit_cast<float>(out);
#endif
}

// What both roots start from: `value` is x times an even power of two, so that no square overflows and no
// residual is subnormal, and `estimate` is within 6.4e-7 of 1/sqrt(value); at 0 it is finite.
struct root_start {
  float value;
  float estimate;
  std::uint32_t tiny; // all ones: value is 2^64 x; 0: x / 4. A bool here would keep the struct in memory
};

PLATEAU_HD inline root_start start_root(float x) noexcept {
  PLATEAU_AS_WRITTEN
  const std::uint32_t tiny = mask(x < 0x1p-101f);
  const float value = x * bit_cast<float>(0x3e800000u ^ (tiny & (0x3e800000u ^ 0x5f800000u)));
  // Half the exponent, negated: within 3.5%. Two Newton steps; the constants of the first spread its error.
  float y = bit_cast<float>(0x5f1ffff9u - (bit_cast<std::uint32_t>(value) >> 1));
  y = 0.703952253f * y * (2.38924456f - value * y * y);
  y = y * (1.5f - 0.5f * value * y * y);
  return {value, y, tiny};
}

PLATEAU_HD inline float sqrt(float x) noexcept {
  PLATEAU_AS_WRITTEN
#if defined(__CUDA_ARCH__)
  return ::sqrtf(x);
#else
  const auto [value, estimate, tiny] = detail::start_root(x);
  const float s = value * estimate;
  const float scaled = s + 0.5f * estimate * (value - s * s);
  const float root =
      scaled * bit_cast<float>(0x40000000u ^ (tiny & (0x40000000u ^ 0x2f800000u))); // 2 or 2^-32
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::uint32_t out = detail::select(x == infinity, 0x7f800000u, bit_cast<std::uint32_t>(root));
  return bit_cast<float>(out | detail::mask(!(x >= 0.0f)));
#endif
}

PLATEAU_HD inline float rsqrt(float x) noexcept {
  PLATEAU_AS_WRITTEN
#if defined(__CUDA_ARCH__)
  return ::rsqrtf(x + 0.0f); // +infinity at -0 too, as on the host
#else
  const auto [value, estimate, tiny] = detail::start_root(x);
  const float scaled = estimate + 0.5f * estimate * (1.0f - value * estimate * estimate);
  const float root =
      scaled * bit_cast<float>(0x3f000000u ^ (tiny & (0x3f000000u ^ 0x4f800000u))); // 1/2 or 2^32
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::uint32_t out = detail::select(x == 0.0f, 0x7f800000u, bit_cast<std::uint32_t>(root));
  out &= ~detail::mask(x == infinity);
  return bit_cast<float>(out | detail::mask(!(x >= 0.0f)));
#endif
}

PLATEAU_HD inline double exp(double x) noexcept { return ::exp(x); }
PLATEAU_HD inline double sqrt(double x) noexcept { return ::sqrt(x); }
PLATEAU_HD inline double rsqrt(double x) noexcept { return 1.0 / ::sqrt(x); }

} // namespace detail

// The functions take any floating scalar and compute in its accumulate type; the bounds are those of float,
// and double goes to the standard library. Templates, so that a using-directive never makes a call of ::exp
// ambiguous.

// e^x. Within 2 units in the last place where the result is a normal number; below 2^-126 the result is 0 or
// off by at most 2^-126. exp(-infinity) is 0, beyond 88.7228 the result is +infinity, NaN stays NaN.
template <floating_scalar T> PLATEAU_HD inline accumulate_t<T> exp(T x) noexcept {
  return detail::exp(widen(x));
}

// The square root within 1 unit in the last place, subnormals included; NaN for x < 0, sqrt(-0) is -0.
// For loops: a single root is faster, and correctly rounded, by std::sqrt.
template <floating_scalar T> PLATEAU_HD inline accumulate_t<T> sqrt(T x) noexcept {
  return detail::sqrt(widen(x));
}

// 1/sqrt(x) within 2 units in the last place, subnormals included; infinity at 0, 0 at infinity, NaN for
// x < 0.
template <floating_scalar T> PLATEAU_HD inline accumulate_t<T> rsqrt(T x) noexcept {
  return detail::rsqrt(widen(x));
}

// 1 / (1 + e^-x), without overflow for any x.
template <floating_scalar T> PLATEAU_HD inline accumulate_t<T> sigmoid(T x) noexcept {
  return accumulate_t<T>{1} / (accumulate_t<T>{1} + detail::exp(-widen(x)));
}

// x sigmoid(x); NaN at -infinity.
template <floating_scalar T> PLATEAU_HD inline accumulate_t<T> silu(T x) noexcept {
  return widen(x) / (accumulate_t<T>{1} + detail::exp(-widen(x)));
}

} // namespace plateau::inline v0
