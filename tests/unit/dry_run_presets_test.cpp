// SPDX-License-Identifier: Apache-2.0
//
// The presets are machines that can be, and none is faster than its data sheet.
#include <plateau/dry_run/presets.hpp>

#include <doctest/doctest.h>

namespace {

namespace pl = plateau;

TEST_CASE("an H200 is possible and no faster than NVIDIA says") {
  const pl::hardware h = pl::h200();
  CHECK_NOTHROW(pl::check(h));
  CHECK(h.name == "H200");
  CHECK(h.fp32_flops < 67e12);
  CHECK(h.half_flops < 989e12);
  CHECK(h.half_flops > 0.5 * 989e12);
  CHECK(h.device_memory_bytes_per_second < 4.8e12);
  CHECK(h.cache_bytes_per_second > h.device_memory_bytes_per_second);
  CHECK(h.device_bytes == 141'000'000'000u);
  CHECK(h.host_to_device_bytes_per_second < 64e9);
  CHECK(h.device_to_host_bytes_per_second < 64e9);
  // Both ways together: more than one way, less than two of them.
  CHECK(h.host_link_bytes_per_second > h.host_to_device_bytes_per_second);
  CHECK(h.host_link_bytes_per_second < 2 * h.host_to_device_bytes_per_second);
  CHECK(h.node_link_bytes_per_second < 450e9);
  CHECK(h.network_bytes_per_second < 50e9);
  CHECK(h.ranks_per_node == 8);
}

} // namespace
