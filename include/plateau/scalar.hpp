// SPDX-License-Identifier: Apache-2.0
//
// The element types of tensors. `bfloat16` and `half` only store: every computation widens to float and
// rounds once on the way back. Both are converted by integer arithmetic without branches, so that a loop
// around a conversion vectorises, the bits are the same on host and device, and no vendor header is needed.
// Their layout is that of `__nv_bfloat16` and `__half`, so device libraries can be handed the same pointers.
#pragma once

#include <plateau/config.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace plateau::inline v0 {

// The builtin and not std::bit_cast: the latter is a host function, which device code may not call.
template <class To, class From> PLATEAU_HD constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From), "plateau: bit_cast needs two types of the same size");
  return __builtin_bit_cast(To, from);
}

namespace detail {
// Choices by mask: around a float operation GCC takes ?: for control flow and does not vectorise the loop.
PLATEAU_HD constexpr std::uint32_t mask(bool condition) noexcept {
  return 0u - static_cast<std::uint32_t>(condition); // all ones or 0
}
PLATEAU_HD constexpr std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  return no ^ ((yes ^ no) & mask(condition));
}
} // namespace detail

// 8 exponent bits, 7 of mantissa: the upper half of a float.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default; // uninitialised, as float is

  // To nearest, ties to even; beyond the largest finite value to infinity; a NaN becomes quiet and keeps its
  // sign. A double is rounded to float first.
  PLATEAU_HD constexpr explicit bfloat16(float value) noexcept
      : bits{round(bit_cast<std::uint32_t>(value))} {}
  template <class Number>
    requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, float>)
  PLATEAU_HD constexpr explicit bfloat16(Number value) noexcept : bfloat16(static_cast<float>(value)) {}

  PLATEAU_HD constexpr operator float() const noexcept {
    return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  PLATEAU_HD static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 out{0.0f};
    out.bits = bits;
    return out;
  }

 private:
  PLATEAU_HD static constexpr std::uint16_t round(std::uint32_t value) noexcept {
    // Half a unit, less one when the kept part is even: the carry then rounds to nearest even, and to
    // infinity beyond the largest value.
    const std::uint32_t nearest = value + 0x7fffu + ((value >> 16) & 1u);
    const std::uint32_t quiet = value | 0x00400000u;
    const bool is_nan = static_cast<std::int32_t>(value & 0x7fffffffu) > 0x7f800000;
    return static_cast<std::uint16_t>(detail::select(is_nan, quiet, nearest) >> 16);
  }
};

// IEEE binary16: 5 exponent bits, 10 of mantissa; largest finite value 65504, smallest subnormal 2^-24.
struct half {
  std::uint16_t bits;

  half() = default; // uninitialised, as float is

  // To nearest, ties to even, subnormals included; from 65520 to infinity; a NaN becomes quiet and keeps its
  // sign. A double is rounded to float first.
  PLATEAU_HD constexpr explicit half(float value) noexcept : bits{round(bit_cast<std::uint32_t>(value))} {}
  template <class Number>
    requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, float>)
  PLATEAU_HD constexpr explicit half(Number value) noexcept : half(static_cast<float>(value)) {}

  PLATEAU_HD constexpr operator float() const noexcept {
    const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000u) << 16;
    const std::uint32_t magnitude = (static_cast<std::uint32_t>(bits) & 0x7fffu) << 13;
    const std::uint32_t exponent = magnitude & 0x0f800000u;
    const std::uint32_t normal = magnitude + 0x38000000u; // exponent bias 15 -> 127
    const std::uint32_t special = magnitude + 0x70000000u;
    // A subnormal's mantissa below the hidden bit of 2^-14; subtracting that bit normalises it exactly.
    const float subnormal = bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f;
    std::uint32_t out = detail::select(exponent == 0x0f800000u, special, normal);
    out = detail::select(exponent == 0u, bit_cast<std::uint32_t>(subnormal), out);
    return bit_cast<float>(sign | out);
  }

  PLATEAU_HD static constexpr half from_bits(std::uint16_t bits) noexcept {
    half out{0.0f};
    out.bits = bits;
    return out;
  }

 private:
  PLATEAU_HD static constexpr std::uint16_t round(std::uint32_t value) noexcept {
    const std::uint32_t sign = (value >> 16) & 0x8000u;
    const std::int32_t magnitude = static_cast<std::int32_t>(value & 0x7fffffffu);
    const std::uint32_t bits = static_cast<std::uint32_t>(magnitude);
    const std::uint32_t normal = (bits + 0xc8000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13;
    // One unit of 0.5f in the last place is 2^-24, the smallest half: the float addition does the rounding.
    // What is too large for this path is replaced by 0 first, as adding to a NaN or an infinity would cost
    // time and flags.
    const std::uint32_t below = detail::select(magnitude < 0x38800000, bits, 0u);
    const std::uint32_t subnormal = bit_cast<std::uint32_t>(bit_cast<float>(below) + 0.5f) - 0x3f000000u;
    const std::uint32_t quiet = 0x7e00u | ((bits >> 13) & 0x3ffu);
    std::uint32_t out = detail::select(magnitude < 0x38800000, subnormal, normal);
    out = detail::select(magnitude >= 0x47800000, 0x7c00u, out);
    out = detail::select(magnitude > 0x7f800000, quiet, out);
    return static_cast<std::uint16_t>(sign | out);
  }
};

// Every element type the library knows, by number: what digests, checks at the seam and file readers compare.
enum class scalar_kind : std::uint8_t {
  none,
  bf16,
  fp16,
  fp32,
  fp64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  byte
};

namespace detail {
template <class T> constexpr scalar_kind kind_of() noexcept {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bfloat16>)
    return scalar_kind::bf16;
  else if constexpr (std::is_same_v<U, half>)
    return scalar_kind::fp16;
  else if constexpr (std::is_same_v<U, float>)
    return scalar_kind::fp32;
  else if constexpr (std::is_same_v<U, double>)
    return scalar_kind::fp64;
  else if constexpr (std::is_same_v<U, std::byte>)
    return scalar_kind::byte;
  else if constexpr (std::is_integral_v<U> && !std::is_same_v<U, bool>) {
    // By size: long and long long are both 64 bits.
    if constexpr (sizeof(U) == 1)
      return std::is_signed_v<U> ? scalar_kind::int8 : scalar_kind::uint8;
    else if constexpr (sizeof(U) == 2)
      return std::is_signed_v<U> ? scalar_kind::int16 : scalar_kind::uint16;
    else if constexpr (sizeof(U) == 4)
      return std::is_signed_v<U> ? scalar_kind::int32 : scalar_kind::uint32;
    else if constexpr (sizeof(U) == 8)
      return std::is_signed_v<U> ? scalar_kind::int64 : scalar_kind::uint64;
    else
      return scalar_kind::none;
  } else
    return scalar_kind::none;
}
} // namespace detail

template <class T> inline constexpr scalar_kind scalar_kind_of = detail::kind_of<T>();

template <class T>
concept scalar = (scalar_kind_of<T> != scalar_kind::none);

// What sums and products are formed in: bfloat16, half and float compute in float, double in double.
template <class T>
concept floating_scalar = (scalar_kind_of<T> == scalar_kind::bf16 || scalar_kind_of<T> == scalar_kind::fp16 ||
                           scalar_kind_of<T> == scalar_kind::fp32 || scalar_kind_of<T> == scalar_kind::fp64);

template <floating_scalar T>
using accumulate_t = std::conditional_t<scalar_kind_of<T> == scalar_kind::fp64, double, float>;

// The exact value in the accumulate type.
template <floating_scalar T> PLATEAU_HD constexpr accumulate_t<T> widen(T value) noexcept {
  return static_cast<accumulate_t<T>>(value);
}

// Back to the storage type: the one rounding of a computation.
template <floating_scalar T> PLATEAU_HD constexpr T narrow(accumulate_t<T> value) noexcept {
  return static_cast<T>(value);
}

// The spelling used in messages, options and files: "bf16", "fp16", "fp32", "fp64", "int32", ...
constexpr std::string_view scalar_name(scalar_kind kind) noexcept {
  constexpr std::string_view names[] = {"none",  "bf16",  "fp16",  "fp32",   "fp64",   "int8",   "int16",
                                        "int32", "int64", "uint8", "uint16", "uint32", "uint64", "byte"};
  const auto at = static_cast<std::size_t>(kind);
  return at < sizeof(names) / sizeof(names[0]) ? names[at] : "none";
}

template <scalar T> constexpr std::string_view scalar_name() noexcept {
  return scalar_name(scalar_kind_of<T>);
}

// Bytes of one element; 0 for `none`.
constexpr index_t scalar_bytes(scalar_kind kind) noexcept {
  switch (kind) {
  case scalar_kind::bf16:
  case scalar_kind::fp16:
  case scalar_kind::int16:
  case scalar_kind::uint16:
    return 2;
  case scalar_kind::fp32:
  case scalar_kind::int32:
  case scalar_kind::uint32:
    return 4;
  case scalar_kind::fp64:
  case scalar_kind::int64:
  case scalar_kind::uint64:
    return 8;
  case scalar_kind::int8:
  case scalar_kind::uint8:
  case scalar_kind::byte:
    return 1;
  case scalar_kind::none:
    break;
  }
  return 0;
}

static_assert(sizeof(bfloat16) == 2 && alignof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);
static_assert(sizeof(half) == 2 && alignof(half) == 2 && std::is_trivially_copyable_v<half>);

} // namespace plateau::inline v0
