// SPDX-License-Identifier: Apache-2.0
//
// JSON that a user has written by hand: what is wrong with it is told by its line, and a field that is there
// twice is refused, since one of the two would be forgotten.
#pragma once

#include "input_error.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moe {

namespace detail {

inline std::ptrdiff_t line_of(std::string_view text, std::size_t byte) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size())),
                        '\n');
}

// The parser's words behind its name for the error and the place, which is told otherwise.
inline std::string_view reason_in(std::string_view what) {
  if (const auto column = what.find(", column "); column != std::string_view::npos)
    what.remove_prefix(column);
  const auto colon = what.find(": ");
  return colon == std::string_view::npos ? what.substr(what.find(' ') + 1) : what.substr(colon + 2);
}

} // namespace detail

// Throws input_error, one line with the path and the line.
inline nlohmann::json json_of(const std::string& path, std::string_view text) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open; // the fields of the objects around
  const auto fields = [&](int, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      throw input_error{
          fmt::format("{}: field '{}': expected it once", shown(path), shown(parsed.get<std::string>()))};
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), fields);
  } catch (const json::parse_error& error) {
    throw input_error{fmt::format("{}: line {}: not JSON ({})", shown(path),
                                  detail::line_of(text, error.byte), shown(detail::reason_in(error.what())))};
  } catch (const json::out_of_range& error) { // a number; it stands between the quotes
    const std::string_view what = error.what();
    const auto begin = what.find('\'') + 1;
    const std::string_view number = what.substr(begin, what.rfind('\'') - begin);
    throw input_error{fmt::format("{}: line {}: expected a number that a double holds, got {}", shown(path),
                                  detail::line_of(text, text.find(number)), shown(number))};
  }
}

} // namespace moe
