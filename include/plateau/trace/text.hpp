// SPDX-License-Identifier: Apache-2.0
//
// Pieces of text for the writers of traces: the same on every machine and in every locale, and well-formed
// whatever a name holds. All append to a string, so that a writer can reuse its storage.
#pragma once

#include <plateau/config.hpp>

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <system_error>

namespace plateau::inline v0::detail {

template <std::integral T> void append_number(std::string& to, T value) {
  char digits[24];
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// With at most that many decimals; zeros at the end are left out. 0 for what is not a number.
inline void append_decimal(std::string& to, double value, int decimals) {
  char digits[400]; // the largest double has 309 before the point
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, std::isfinite(value) ? value : 0.0,
                                          std::chars_format::fixed, decimals);
  std::string_view text(digits, static_cast<std::size_t>(end - digits));
  if (text.find('.') != std::string_view::npos) {
    text.remove_suffix(text.size() - 1 - text.find_last_not_of('0'));
    if (text.back() == '.') text.remove_suffix(1);
  }
  to += text == "-0" ? "0" : text;
}

// The bytes of the UTF-8 character at the beginning of a text that is not empty; 0 if there is none: a stray
// or overlong byte, a surrogate, a character cut short or beyond the last.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0)) return 0;
    return follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) return 0;
    return follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

inline constexpr const char* replacement_character = "\xef\xbf\xbd"; // U+FFFD

// Calls f for each character of the text, as its bytes.
template <class F> void for_each_character(std::string_view text, F f) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    f(length == 0 ? std::string_view(replacement_character) : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

// What stands between the quotes of a JSON string.
inline void append_json(std::string& to, std::string_view text) {
  for_each_character(text, [&](std::string_view c) {
    constexpr const char* digits = "0123456789abcdef";
    const auto code = static_cast<unsigned char>(c[0]);
    if (c == "\"" || c == "\\")
      (to += '\\') += c;
    else if (code < 0x20 || code == 0x7f)
      ((to += "\\u00") += digits[code >> 4]) += digits[code & 15];
    else
      to += c;
  });
}

// Text or an attribute's value in XML, which has no way to write most control characters.
inline void append_xml(std::string& to, std::string_view text) {
  for_each_character(text, [&](std::string_view c) {
    const auto code = static_cast<unsigned char>(c[0]);
    if (c == "&")
      to += "&amp;";
    else if (c == "<")
      to += "&lt;";
    else if (c == ">")
      to += "&gt;";
    else if (c == "\"")
      to += "&quot;";
    else if (c == "\t" || c == "\n" || c == "\r")
      to += ' ';
    else if (code < 0x20 || code == 0x7f || c == "\xef\xbf\xbe" || c == "\xef\xbf\xbf")
      to += replacement_character;
    else
      to += c;
  });
}

} // namespace plateau::inline v0::detail
