// SPDX-License-Identifier: Apache-2.0
//
// What is measured of this machine is a machine that can be, and more ranks have no more of it each. How fast
// it is, no test can know.
#include <plateau/dry_run/this_host.hpp>

#include <doctest/doctest.h>

namespace {

namespace pl = plateau;

TEST_CASE("this host is a possible machine, of one node") {
  const pl::hardware h = pl::measure_host(3);
  CHECK_NOTHROW(pl::check(h));
  CHECK(h.name == "this host");
  CHECK(h.ranks_per_node == 3);
  CHECK(h.cache_bytes > 0);
  CHECK(h.operation_seconds > 0);
  CHECK(h.launch_seconds > 0);
  CHECK(h.node_link_seconds > 0);
  // What three ranks copy together is no more than what the node's memory gives.
  CHECK(3 * h.host_to_device_bytes_per_second <= h.host_memory_bytes_per_second * (1 + 1e-9));
  CHECK(3 * h.host_link_bytes_per_second <= h.host_memory_bytes_per_second * (1 + 1e-9));
  CHECK(h.cache_bytes_per_second >= h.device_memory_bytes_per_second);
}

TEST_CASE("a machine without ranks is refused") {
  CHECK_THROWS_WITH_AS(pl::measure_host(0), "plateau: measure_host: 0 ranks; there must be at least 1",
                       pl::config_error);
}

TEST_CASE("a median wants three calls") {
  int calls = 0;
  CHECK(pl::detail::median_seconds(0, [&] { ++calls; }) > 0);
  CHECK(calls == 4); // and one before them
}

} // namespace
