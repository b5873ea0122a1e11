// SPDX-License-Identifier: Apache-2.0
//
// The machine of a dry run: a preset, the machine that the program runs on, or a JSON file with the figures
// of one's own, which may start from a preset:
//   {"from": "h200", "name": "my cluster", "network_bytes_per_second": 2.5e10, "ranks_per_node": 4}
// Fields are those of plateau::hardware.
#pragma once

#include "input_error.hpp"
#include "input_file.hpp"
#include "json_text.hpp"

#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/this_host.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moe {

namespace detail {

struct hardware_rate {
  std::string_view name;
  double plateau::hardware::*value;
};
inline constexpr std::array<hardware_rate, 16> hardware_rates{
    {{"fp32_flops", &plateau::hardware::fp32_flops},
     {"half_flops", &plateau::hardware::half_flops},
     {"device_memory_bytes_per_second", &plateau::hardware::device_memory_bytes_per_second},
     {"cache_bytes_per_second", &plateau::hardware::cache_bytes_per_second},
     {"operation_seconds", &plateau::hardware::operation_seconds},
     {"copy_seconds", &plateau::hardware::copy_seconds},
     {"host_to_device_bytes_per_second", &plateau::hardware::host_to_device_bytes_per_second},
     {"device_to_host_bytes_per_second", &plateau::hardware::device_to_host_bytes_per_second},
     {"host_link_bytes_per_second", &plateau::hardware::host_link_bytes_per_second},
     {"host_memory_bytes_per_second", &plateau::hardware::host_memory_bytes_per_second},
     {"launch_seconds", &plateau::hardware::launch_seconds},
     {"host_exchange_seconds", &plateau::hardware::host_exchange_seconds},
     {"node_link_bytes_per_second", &plateau::hardware::node_link_bytes_per_second},
     {"node_link_seconds", &plateau::hardware::node_link_seconds},
     {"network_bytes_per_second", &plateau::hardware::network_bytes_per_second},
     {"network_seconds", &plateau::hardware::network_seconds}}};

// ", a, b, c"
inline std::string names_of_rates() {
  std::string names;
  for (const hardware_rate& rate : hardware_rates) names += ", " + std::string(rate.name);
  return names;
}

// The text of a small file. Throws input_error.
inline std::string small_text(const std::string& path, const std::string& expected) {
  constexpr std::uint64_t largest = std::uint64_t{1} << 30;
  const input_file file(path, expected);
  if (file.size() > largest)
    throw input_error{
        fmt::format("{}: {} bytes; expected {} of at most {}", shown(path), file.size(), expected, largest)};
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// The whole numbers of a field, as JSON has them. Throws input_error naming the field.
template <class Integer>
void set_whole(const std::string& place, const nlohmann::json& value, Integer& to, std::int64_t lowest) {
  const double most = std::min(0x1p53, static_cast<double>(std::numeric_limits<Integer>::max()));
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!value.is_number() || number != std::floor(number) || number < static_cast<double>(lowest) ||
      number > most)
    throw input_error{
        fmt::format("{}: expected a whole number from {} on, got {}", place, lowest,
                    shown(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)))};
  to = static_cast<Integer>(number);
}

inline plateau::hardware hardware_of_json(const std::string& path, const nlohmann::json& all) {
  const auto place = [&](std::string_view field) {
    return fmt::format("{}: field '{}'", shown(path), shown(field));
  };
  if (!all.is_object())
    throw input_error{fmt::format("{}: expected an object with the figures of a machine", shown(path))};
  plateau::hardware h;
  if (const auto from = all.find("from"); from != all.end()) {
    if (!from->is_string() || from->get<std::string>() != "h200")
      throw input_error{fmt::format("{}: expected the preset \"h200\"", place("from"))};
    h = plateau::h200();
  }
  for (const auto& [name, value] : all.items()) {
    const auto rate = std::find_if(hardware_rates.begin(), hardware_rates.end(),
                                   [&, &n = name](const hardware_rate& r) { return r.name == n; });
    if (name == "from") continue;
    const auto got = [&, &v = value] {
      return shown(v.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    };
    if (name == "name" && !value.is_string())
      throw input_error{fmt::format("{}: expected a text, got {}", place(name), got())};
    if (name == "name")
      h.name = value.get<std::string>();
    else if (name == "cache_bytes")
      set_whole(place(name), value, h.cache_bytes, 0);
    else if (name == "device_bytes")
      set_whole(place(name), value, h.device_bytes, 0);
    else if (name == "ranks_per_node")
      set_whole(place(name), value, h.ranks_per_node, 1);
    else if (rate == hardware_rates.end())
      throw input_error{
          fmt::format("{}: unknown; expected from, name, cache_bytes, device_bytes, ranks_per_node{}",
                      place(name), names_of_rates())};
    else if (!value.is_number())
      throw input_error{fmt::format("{}: expected a number, got {}", place(name), got())};
    else
      h.*(rate->value) = value.get<double>();
  }
  if (h.name.empty()) h.name = path;
  for (const hardware_rate& rate : hardware_rates)
    if (!all.contains("from") && !all.contains(rate.name))
      throw input_error{fmt::format(
          "{}: missing; expected it with the others{}, or \"from\": \"h200\" for those that are left out",
          place(rate.name), names_of_rates())};
  try {
    check(h);
  } catch (const plateau::config_error& e) {
    throw input_error{fmt::format("{}: {}", shown(path), e.what())};
  }
  return h;
}

} // namespace detail

// h200, or the name of a JSON file; `flag` gave it. Throws input_error: one line with the file, the line or
// the field.
inline plateau::hardware load_hardware(const std::string& flag, const std::string& text) try {
  if (text == "h200") return plateau::h200();
  const std::string json =
      detail::small_text(text, "h200, this-host, or a JSON file with a machine's figures");
  return detail::hardware_of_json(text, json_of(text, json));
} catch (const input_error& e) {
  throw input_error{fmt::format("{} {}", flag, e.what())};
}

// The machine that a flag names. this-host is measured. Throws input_error.
inline plateau::hardware machine_of(const std::string& flag, const std::string& text, std::int64_t ranks) {
  return text == "this-host" ? plateau::measure_host(static_cast<int>(ranks)) : load_hardware(flag, text);
}

} // namespace moe
