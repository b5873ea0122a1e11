// SPDX-License-Identifier: Apache-2.0
//
// Numbers and byte sizes from the command line, strictly: the whole text must be the number, within its
// range, and the message of what is not names the flag, what it got and what was expected. And back to text
// for people.
#pragma once

#include "input_error.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace moe {

// Throws input_error unless `text` is a whole number in [lowest, highest].
inline std::int64_t parse_integer(std::string_view flag, std::string_view text, std::int64_t lowest,
                                  std::int64_t highest) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < lowest || value > highest)
    throw input_error{fmt::format("{}: expected a whole number from {} to {}, got '{}'", flag, lowest,
                                  highest, shown(text))};
  return value;
}

// Throws input_error unless `text` is a finite number in [lowest, highest].
inline double parse_real(std::string_view flag, std::string_view text, double lowest, double highest) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !std::isfinite(value) || value < lowest || value > highest)
    throw input_error{
        fmt::format("{}: expected a number from {} to {}, got '{}'", flag, lowest, highest, shown(text))};
  return value;
}

// "64MiB", "1.5GiB", "4096", "10MB": KiB, MiB, GiB, TiB are powers of 1,024, kB, MB, GB, TB of 1,000; rounded
// down to whole bytes. Throws input_error for anything else, for zero and beyond 2^62.
inline std::uint64_t parse_bytes(std::string_view flag, std::string_view text) {
  struct unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<unit, 10> units{{{"", 1},
                                        {"B", 1},
                                        {"KiB", 0x1p10},
                                        {"MiB", 0x1p20},
                                        {"GiB", 0x1p30},
                                        {"TiB", 0x1p40},
                                        {"kB", 1e3},
                                        {"MB", 1e6},
                                        {"GB", 1e9},
                                        {"TB", 1e12}}};
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const auto name = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error == std::errc{} && std::isfinite(value))
    for (const auto& candidate : units)
      if (candidate.name == name && value * candidate.bytes >= 1 && value * candidate.bytes <= 0x1p62)
        return static_cast<std::uint64_t>(value * candidate.bytes);
  throw input_error{
      fmt::format("{}: expected a size such as 512KiB, 64MiB or 1.5GiB, got '{}'", flag, shown(text))};
}

// The same number, but a NaN without its sign, which means nothing and reads as if it did.
inline double plain_nan(double value) { return std::isnan(value) ? std::fabs(value) : value; }

// 1536 -> "1.50 KiB": three digits or more, for people; the JSON has the exact number.
inline std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.995 would be printed as 1024.00: the next unit says it better.
  for (; value >= 1023.995 && unit + 1 < units.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

} // namespace moe
