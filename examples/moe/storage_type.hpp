// SPDX-License-Identifier: Apache-2.0
//
// The element types of a safetensors file and how they widen to float or to 64-bit integers. Widening bf16
// and fp16 is exact; only F64 rounds (to nearest).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace moe {

static_assert(std::endian::native == std::endian::little,
              "the files are little-endian and are read as they lie");

enum class storage_type {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};

struct storage_type_row {
  storage_type type;
  std::string_view name; // as in the file
  std::size_t bytes;     // per element
};

inline constexpr std::array<storage_type_row, 15> storage_types{{{storage_type::f64, "F64", 8},
                                                                 {storage_type::f32, "F32", 4},
                                                                 {storage_type::f16, "F16", 2},
                                                                 {storage_type::bf16, "BF16", 2},
                                                                 {storage_type::i64, "I64", 8},
                                                                 {storage_type::i32, "I32", 4},
                                                                 {storage_type::i16, "I16", 2},
                                                                 {storage_type::i8, "I8", 1},
                                                                 {storage_type::u64, "U64", 8},
                                                                 {storage_type::u32, "U32", 4},
                                                                 {storage_type::u16, "U16", 2},
                                                                 {storage_type::u8, "U8", 1},
                                                                 {storage_type::boolean, "BOOL", 1},
                                                                 {storage_type::f8_e4m3, "F8_E4M3", 1},
                                                                 {storage_type::f8_e5m2, "F8_E5M2", 1}}};

constexpr std::string_view name_of(storage_type type) {
  return storage_types[static_cast<std::size_t>(type)].name;
}
constexpr std::size_t bytes_of(storage_type type) {
  return storage_types[static_cast<std::size_t>(type)].bytes;
}

constexpr std::optional<storage_type> storage_type_named(std::string_view name) {
  for (const auto& row : storage_types)
    if (row.name == name) return row.type;
  return std::nullopt;
}

inline float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) { // zero or subnormal: fraction x 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13)); // inf or NaN
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

namespace detail {

template <class Stored, class To, class Convert>
void widen_each(std::span<const std::byte> bytes, std::span<To> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(stored);
  }
}

} // namespace detail

// `bytes` holds out.size() elements of `type`. False when `type` is not one that widens to float.
inline bool widen(storage_type type, std::span<const std::byte> bytes, std::span<float> out) {
  switch (type) {
  case storage_type::f64:
    detail::widen_each<double>(bytes, out, [](double v) { return static_cast<float>(v); });
    return true;
  case storage_type::f32:
    detail::widen_each<float>(bytes, out, [](float v) { return v; });
    return true;
  case storage_type::f16:
    detail::widen_each<std::uint16_t>(bytes, out, widen_f16);
    return true;
  case storage_type::bf16:
    detail::widen_each<std::uint16_t>(bytes, out, widen_bf16);
    return true;
  default:
    return false;
  }
}

// The same for integers. U64 and BOOL are left out: nothing here stores ids so, and U64 does not fit.
inline bool widen(storage_type type, std::span<const std::byte> bytes, std::span<std::int64_t> out) {
  const auto same = [](auto v) { return static_cast<std::int64_t>(v); };
  switch (type) {
  case storage_type::i64:
    detail::widen_each<std::int64_t>(bytes, out, same);
    return true;
  case storage_type::i32:
    detail::widen_each<std::int32_t>(bytes, out, same);
    return true;
  case storage_type::i16:
    detail::widen_each<std::int16_t>(bytes, out, same);
    return true;
  case storage_type::i8:
    detail::widen_each<std::int8_t>(bytes, out, same);
    return true;
  case storage_type::u32:
    detail::widen_each<std::uint32_t>(bytes, out, same);
    return true;
  case storage_type::u16:
    detail::widen_each<std::uint16_t>(bytes, out, same);
    return true;
  case storage_type::u8:
    detail::widen_each<std::uint8_t>(bytes, out, same);
    return true;
  default:
    return false;
  }
}

} // namespace moe
