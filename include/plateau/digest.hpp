// SPDX-License-Identifier: Apache-2.0
//
// A digest of what all ranks must agree on: shapes, types and options. FNV-1a, 64 bits: it finds mistakes, it
// does not resist an adversary. The same on every machine, whatever its byte order.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>

#include <string_view>
#include <type_traits>

namespace plateau::inline v0 {

class digest {
 public:
  // An integer, a bool or an enumerator, as 64 bits. Order matters: add(1).add(2) is not add(2).add(1).
  template <class T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
  constexpr digest& add(T value) {
    auto bits = static_cast<std::uint64_t>(value);
    for (int i = 0; i < 8; ++i, bits >>= 8) byte(static_cast<unsigned char>(bits & 0xffu));
    return *this;
  }
  // A floating-point value by its bits: 0.0 and -0.0 differ, and so do a float and the double of its value.
  template <floating_scalar T> constexpr digest& add(T value) {
    if constexpr (sizeof(T) == 8)
      return add(bit_cast<std::uint64_t>(value));
    else if constexpr (sizeof(T) == 4)
      return add(bit_cast<std::uint32_t>(value));
    else
      return add(bit_cast<std::uint16_t>(value));
  }
  // Its length is part of it, so that ("ab", "c") is not ("a", "bc").
  constexpr digest& add(std::string_view text) {
    add(text.size());
    for (const char c : text) byte(static_cast<unsigned char>(c));
    return *this;
  }
  constexpr std::uint64_t value() const { return state_; }

 private:
  constexpr void byte(unsigned char b) { state_ = (state_ ^ b) * 0x100000001b3u; }

  std::uint64_t state_ = 0xcbf29ce484222325u;
};

} // namespace plateau::inline v0
