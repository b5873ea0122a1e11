// SPDX-License-Identifier: Apache-2.0
//
// The machine of a dry run from a user's file: the figures that it gets, and what is said of those that
// cannot be.
#include "hardware_file.hpp"
#include "scratch_folder.hpp"

#include <plateau/dry_run/presets.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::write_file;

namespace {

plateau::hardware load(const std::string& json) {
  const moe_test::scratch_folder folder;
  write_file(folder.file("machine"), json);
  return load_hardware("--hardware", folder.file("machine"));
}

// What is said of a file's text, behind the flag and the path.
std::string refusal(const std::string& json) {
  const moe_test::scratch_folder folder;
  const std::string path = folder.file("machine");
  write_file(path, json);
  const std::string message = message_of<input_error>([&] { load_hardware("--hardware", path); });
  REQUIRE(message.starts_with("--hardware " + path + ": "));
  REQUIRE_FALSE(has(message, "\n"));
  return message.substr(path.size() + 13);
}

// Every figure, and so a file without a preset.
std::string all_figures(const std::string& more) {
  std::string text = "{";
  for (const detail::hardware_rate& rate : detail::hardware_rates)
    text += '"' + std::string(rate.name) + "\": 2, ";
  return text + more + "}";
}

} // namespace

TEST_CASE("figures replace those of the preset that they start from; without one, all are there") {
  const plateau::hardware h = load(
      R"({"from": "h200", "ranks_per_node": 4, "network_bytes_per_second": 2.5e10, "device_bytes": 8e9})");
  CHECK(h.ranks_per_node == 4);
  CHECK(h.network_bytes_per_second == 2.5e10);
  CHECK(h.device_bytes == 8'000'000'000);
  CHECK(h.half_flops == plateau::h200().half_flops);
  CHECK(h.name == "H200");
  const plateau::hardware own = load(all_figures(R"("name": "mine", "cache_bytes": 7)"));
  CHECK(own.name == "mine");
  CHECK(own.cache_bytes == 7);
  CHECK(own.device_bytes == 0); // not stated
  for (const detail::hardware_rate& rate : detail::hardware_rates) CHECK(own.*(rate.value) == 2);
  CHECK(load_hardware("--hardware", "h200").name == "H200");
}

TEST_CASE("every figure is looked at, and what is missing is named") {
  for (const detail::hardware_rate& rate : detail::hardware_rates) {
    const std::string name(rate.name);
    CAPTURE(name);
    CHECK(has(refusal(R"({"from": "h200", ")" + name + "\": -1}"), name + " is -1"));
    CHECK(has(refusal(R"({"from": "h200", ")" + name + "\": null}"), "field '" + name + "'"));
    std::string text = all_figures(R"("name": "mine")");
    text.replace(text.find('"' + name + '"'), name.size() + 2, "\"cache_bytes\"");
    CHECK(has(refusal(text), "field '" + name + "': missing"));
  }
  CHECK(has(refusal(R"({"from": "h200", "network_bytes_per_second": 0})"), "network_bytes_per_second is 0"));
  CHECK(has(refusal(R"({"from": "h200", "ranks_per_node": 0})"), "field 'ranks_per_node'"));
  CHECK(has(refusal(R"({"from": "h200", "ranks_per_node": 3e9})"), "field 'ranks_per_node'"));
  CHECK(has(refusal(R"({"from": "h200", "device_bytes": 1e30})"), "field 'device_bytes'"));
  CHECK(has(refusal(R"({"from": "h200", "flops": 1})"), "field 'flops': unknown"));
  CHECK(refusal(R"({"from": "h200", "name": 5})") == "field 'name': expected a text, got 5");
  CHECK(refusal("[]") == "expected an object with the figures of a machine");
}

TEST_CASE("what is not JSON, or has a field twice, is told with its line or field") {
  CHECK(refusal("{\"from\": \"h200\",\n\"half_flops\":}") ==
        "line 2: not JSON (syntax error while parsing value - unexpected '}'; expected '[', '{', or a "
        "literal)");
  CHECK(has(refusal(""), "line 1: not JSON (syntax error"));
  CHECK(has(refusal("{\"name\": \"\xff\"}"), "line 1: not JSON ("));
  CHECK(refusal("{\"from\": \"h200\",\n\n\"half_flops\": 1e999}") ==
        "line 3: expected a number that a double holds, got 1e999");
  CHECK(refusal(R"({"from": "h200", "half_flops": 1, "half_flops": 2})") ==
        "field 'half_flops': expected it once");
}
