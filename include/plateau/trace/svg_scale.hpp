// SPDX-License-Identifier: Apache-2.0
//
// Units and ticks of a drawing's axes: bytes in the unit that suits the largest value, seconds likewise, and
// ticks at round numbers.
#pragma once

#include <plateau/config.hpp>
#include <plateau/trace/text.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace plateau::inline v0::detail {

struct unit {
  const char* name;
  double size;
};

// The unit in which that many bytes, or seconds, read best.
constexpr unit unit_of_bytes(double bytes) {
  constexpr unit units[] = {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
  for (const unit& u : units)
    if (bytes >= u.size) return u;
  return {"B", 1};
}
constexpr unit unit_of_seconds(double seconds) {
  constexpr unit units[] = {{"s", 1}, {"ms", 1e-3}, {"\xc2\xb5s", 1e-6}};
  for (const unit& u : units)
    if (seconds >= u.size) return u;
  return {"ns", 1e-9};
}

// With four digits or so: "12.34 GiB", "1.5 ms".
inline std::string text_in(unit u, double value) {
  const double in_units = value / u.size;
  std::string text;
  append_decimal(text, in_units, in_units < 10 ? 3 : in_units < 100 ? 2 : in_units < 1000 ? 1 : 0);
  return (text += ' ') += u.name;
}
inline std::string text_of_bytes(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  return text_in(unit_of_bytes(value), value);
}
inline std::string text_of_seconds(double seconds) {
  return seconds == 0 ? "0 s" : text_in(unit_of_seconds(seconds), seconds);
}
// 1234567 as "1,234,567".
inline std::string text_with_commas(std::size_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// Where the ticks of an axis from 0 to `end` are: about `count` of them, and one beside 0 at least, round
// numbers of the unit apart; bytes are whole.
inline std::vector<double> ticks(double end, unit u, double count) {
  std::vector<double> at;
  if (!(end > 0)) return {0};
  const double rough = end / u.size / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough) step = factor * power;
  while (step * u.size > end) step /= 2; // one beside 0 at least
  if (u.size == 1 && u.name[0] == 'B') step = std::max(step, 1.0);
  for (int i = 0; i * step * u.size <= end; ++i) at.push_back(i * step * u.size);
  return at;
}

} // namespace plateau::inline v0::detail
