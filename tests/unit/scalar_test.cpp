// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 and half against exact arithmetic in double: every bit pattern widens to its value, and every
// float at, just below and just above the middle of two neighbours narrows to the right one.
#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace pl = plateau;

namespace {

struct format {
  int exponent_bits;
  int mantissa_bits;
};

template <class T> constexpr format format_of = {8, 7};
template <> constexpr format format_of<pl::half> = {5, 10};

template <class T> constexpr std::uint16_t infinity_bits = std::is_same_v<T, pl::half> ? 0x7c00 : 0x7f80;

// The value by the definition of the format; infinity's pattern stands for the power of two that follows the
// largest finite value, which is what rounding has to aim at.
template <class T> double magnitude_of(std::uint16_t bits) {
  const auto [exponent_bits, mantissa_bits] = format_of<T>;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

std::uint32_t float_bits(float x) { return pl::bit_cast<std::uint32_t>(x); }

} // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern widens to its value and narrows back to itself", T, pl::bfloat16,
                   pl::half) {
  int wrong = 0;
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto magnitude = static_cast<std::uint16_t>(bits & 0x7fff);
    const float wide = T::from_bits(bits);
    wrong += std::signbit(wide) != (bits >= 0x8000);
    if (magnitude < infinity_bits<T>) {
      wrong += static_cast<double>(std::fabs(wide)) != magnitude_of<T>(magnitude);
      wrong += T{wide}.bits != bits;
    } else if (magnitude == infinity_bits<T>) {
      wrong += !std::isinf(wide);
      wrong += T{wide}.bits != bits;
    } else {
      const auto quiet_bit = static_cast<std::uint16_t>(1 << (format_of<T>.mantissa_bits - 1));
      wrong += !std::isnan(wide);
      wrong += T{wide}.bits != (bits | quiet_bit);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("narrowing rounds to nearest, ties to even, around every midpoint", T, pl::bfloat16,
                   pl::half) {
  int wrong = 0;
  for (std::uint16_t low = 0; low < infinity_bits<T>; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double middle = 0.5 * (magnitude_of<T>(low) + magnitude_of<T>(high));
    const auto tie = static_cast<float>(middle);
    REQUIRE(static_cast<double>(tie) == middle);
    const float below = std::nextafter(tie, 0.0f);
    const float above = std::nextafter(tie, std::numeric_limits<float>::infinity());
    const std::uint16_t even = (low & 1) == 0 ? low : high;
    wrong += T{tie}.bits != even;
    wrong += T{below}.bits != low;
    wrong += T{above}.bits != high;
    wrong += T{-tie}.bits != (even | 0x8000);
    wrong += T{-below}.bits != (low | 0x8000);
    wrong += T{-above}.bits != (high | 0x8000);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("overflow, float subnormals and NaN", T, pl::bfloat16, pl::half) {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(T{std::numeric_limits<float>::max()}.bits == infinity_bits<T>);
  CHECK(T{-std::numeric_limits<float>::max()}.bits == (infinity_bits<T> | 0x8000));
  CHECK(T{infinity}.bits == infinity_bits<T>);
  CHECK(T{-infinity}.bits == (infinity_bits<T> | 0x8000));
  CHECK(T{-0.0f}.bits == 0x8000);
  CHECK(T{std::numeric_limits<float>::denorm_min()}.bits == 0);

  // A signalling NaN whose payload lies wholly in the bits that are cut off must not turn into infinity.
  for (const std::uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    const T narrow{pl::bit_cast<float>(nan)};
    CHECK((narrow.bits & 0x7fff) > infinity_bits<T>);
    CHECK((narrow.bits >> 15) == (nan >> 31));
    CHECK((float_bits(static_cast<float>(narrow)) & 0x00400000u) != 0);
  }
}

TEST_CASE_TEMPLATE("a vectorised loop gives the bits of single conversions", T, pl::bfloat16, pl::half) {
  // A prime stride through all float patterns; the volatile read keeps the reference scalar.
  std::vector<float> input(1 << 16);
  std::uint32_t pattern = 0;
  for (float& x : input) {
    std::memcpy(&x, &pattern, sizeof x);
    pattern += 65537u * 3u + 2u;
  }
  std::vector<T> out(input.size());
  const float* from = input.data();
  T* to = out.data();
  for (std::size_t block = 0; block < input.size(); block += 32)
    for (std::size_t lane = 0; lane < 32; ++lane) to[block + lane] = T{from[block + lane]};
  int wrong = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const volatile float single = input[i];
    wrong += T{single}.bits != out[i].bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("conversions are constant expressions, and values behave as numbers") {
  static_assert(static_cast<float>(pl::bfloat16{1.0f}) == 1.0f);
  static_assert(static_cast<float>(pl::half{-2.5f}) == -2.5f);
  static_assert(pl::half{65520.0f}.bits == 0x7c00);
  static_assert(pl::half{65519.0f}.bits == 0x7bff);
  static_assert(pl::bfloat16{1.00390625f}.bits == 0x3f80); // a tie between 0x3f80 and 0x3f81
  static_assert(pl::bfloat16{1} == pl::bfloat16{1.0});
  static_assert(pl::bfloat16{3.0f} * pl::bfloat16{2.0f} == 6.0f);
  static_assert(!std::is_convertible_v<float, pl::bfloat16>); // narrowing is always visible
  static_assert(!std::is_convertible_v<float, pl::half>);
  static_assert(std::is_trivially_default_constructible_v<pl::bfloat16>);
  static_assert(std::is_trivially_default_constructible_v<pl::half>);
}

TEST_CASE("accumulate types, widen and narrow") {
  static_assert(std::is_same_v<pl::accumulate_t<pl::bfloat16>, float>);
  static_assert(std::is_same_v<pl::accumulate_t<pl::half>, float>);
  static_assert(std::is_same_v<pl::accumulate_t<float>, float>);
  static_assert(std::is_same_v<pl::accumulate_t<double>, double>);
  static_assert(pl::widen(pl::bfloat16{0.5f}) == 0.5f);
  static_assert(pl::narrow<pl::half>(0.1f).bits == 0x2e66);
  static_assert(pl::narrow<double>(0.1) == 0.1);
}

TEST_CASE("kinds and names") {
  static_assert(pl::scalar<pl::bfloat16> && pl::scalar<const float> && pl::scalar<std::byte>);
  static_assert(!pl::scalar<bool> && !pl::scalar<long double> && !pl::scalar<float*> && !pl::scalar<format>);
  static_assert(pl::floating_scalar<pl::half> && !pl::floating_scalar<int>);
  static_assert(pl::scalar_kind_of<long long> == pl::scalar_kind::int64); // as long
  static_assert(pl::scalar_kind_of<long> == pl::scalar_kind::int64);
  CHECK(pl::scalar_name<pl::bfloat16>() == "bf16");
  CHECK(pl::scalar_name<pl::half>() == "fp16");
  CHECK(pl::scalar_name<float>() == "fp32");
  CHECK(pl::scalar_name<std::int32_t>() == "int32");
  CHECK(pl::scalar_name<std::uint8_t>() == "uint8");
  CHECK(pl::scalar_name(pl::scalar_kind::byte) == "byte");
  CHECK(pl::scalar_bytes(pl::scalar_kind_of<pl::half>) == 2);
  CHECK(pl::scalar_bytes(pl::scalar_kind_of<double>) == 8);
  CHECK(pl::scalar_bytes(pl::scalar_kind::none) == 0);
}
