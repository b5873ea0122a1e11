// SPDX-License-Identifier: Apache-2.0
//
// Every figure that no machine can have is refused, by its name and value.
#include <plateau/dry_run/hardware.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

namespace {

namespace pl = plateau;
using plateau_test::slow_machine;

std::string complaint(const pl::hardware& h) {
  try {
    pl::check(h);
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return {};
}
bool names(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST_CASE("a machine of possible figures passes") { CHECK(complaint(slow_machine()).empty()); }

TEST_CASE("rates are positive and finite") {
  struct {
    const char* field;
    double pl::hardware::*value;
  } const rates[] = {
      {"fp32_flops", &pl::hardware::fp32_flops},
      {"half_flops", &pl::hardware::half_flops},
      {"device_memory_bytes_per_second", &pl::hardware::device_memory_bytes_per_second},
      {"cache_bytes_per_second", &pl::hardware::cache_bytes_per_second},
      {"host_to_device_bytes_per_second", &pl::hardware::host_to_device_bytes_per_second},
      {"device_to_host_bytes_per_second", &pl::hardware::device_to_host_bytes_per_second},
      {"host_link_bytes_per_second", &pl::hardware::host_link_bytes_per_second},
      {"host_memory_bytes_per_second", &pl::hardware::host_memory_bytes_per_second},
      {"node_link_bytes_per_second", &pl::hardware::node_link_bytes_per_second},
      {"network_bytes_per_second", &pl::hardware::network_bytes_per_second},
  };
  for (const auto& rate : rates)
    for (const double bad : {0.0, -1.0, not_a_number, infinity}) {
      pl::hardware h = slow_machine();
      h.*rate.value = bad;
      const std::string text = complaint(h);
      CAPTURE(text);
      CHECK(names(text, "'slow'"));
      CHECK(names(text, (std::string(rate.field) + " is ").c_str()));
      CHECK(!names(text, "\n"));
    }
}

TEST_CASE("times may be nothing, but not negative") {
  struct {
    const char* field;
    double pl::hardware::*value;
  } const times[] = {
      {"operation_seconds", &pl::hardware::operation_seconds},
      {"copy_seconds", &pl::hardware::copy_seconds},
      {"launch_seconds", &pl::hardware::launch_seconds},
      {"host_exchange_seconds", &pl::hardware::host_exchange_seconds},
      {"node_link_seconds", &pl::hardware::node_link_seconds},
      {"network_seconds", &pl::hardware::network_seconds},
  };
  for (const auto& time : times) {
    for (const double bad : {-1e-9, not_a_number, infinity}) {
      pl::hardware h = slow_machine();
      h.*time.value = bad;
      CHECK(names(complaint(h), (std::string(time.field) + " is ").c_str()));
    }
    pl::hardware h = slow_machine();
    h.*time.value = 0;
    CHECK(complaint(h).empty());
  }
}

TEST_CASE("a node has a rank") {
  pl::hardware h = slow_machine();
  h.ranks_per_node = 0;
  CHECK(complaint(h) == "plateau: hardware 'slow': ranks_per_node is 0, expected 1 or more");
  h.ranks_per_node = -8;
  CHECK(names(complaint(h), "ranks_per_node is -8"));
}

TEST_CASE("the value is in the text") {
  pl::hardware h = slow_machine();
  h.fp32_flops = -2.5;
  CHECK(complaint(h) == "plateau: hardware 'slow': fp32_flops is -2.5, expected a positive, finite rate");
}

} // namespace
