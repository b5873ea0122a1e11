// SPDX-License-Identifier: Apache-2.0
//
// What a machine can do, as plain numbers: what the timeline of a dry run is made from. Rates are those that
// programs reach, not those of a data sheet, where both are known. A machine of your own is a struct of your
// own; `check` refuses what cannot be.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <cmath>
#include <sstream>
#include <string>

namespace plateau::inline v0 {

struct hardware {
  std::string name;

  // One device, the one that a rank has to itself.
  double fp32_flops = 0; // a second, of matrix products of fp32
  double half_flops = 0; // of bf16 and fp16
  double device_memory_bytes_per_second = 0;
  double cache_bytes_per_second = 0; // for operations that touch at most cache_bytes
  std::uint64_t cache_bytes = 0;     // L2
  std::uint64_t device_bytes = 0;    // capacity; 0: not stated
  double operation_seconds = 0;      // the least that an operation takes on the device
  double kernel_gap_seconds = 0;     // of that, what a kernel of another stream can use
  double copy_seconds = 0;           // what a copy over the host link takes beside its bytes

  // Between a device and its host.
  double host_to_device_bytes_per_second = 0;
  double device_to_host_bytes_per_second = 0;
  double host_link_bytes_per_second = 0; // both directions together

  // One host and its ranks.
  int ranks_per_node = 1;
  double host_memory_bytes_per_second = 0; // of a node; its ranks share it evenly
  double launch_seconds = 0;               // of the host's thread, to issue one operation
  double host_exchange_seconds = 0;        // of integers between hosts

  // Between ranks, each way, for each rank.
  double node_link_bytes_per_second = 0; // to ranks of the same node
  double node_link_seconds = 0;          // latency
  double network_bytes_per_second = 0;   // to ranks of other nodes
  double network_seconds = 0;
};

namespace detail {
[[noreturn]] inline void impossible_figure(const hardware& h, const char* field, double value,
                                           const char* expected) {
  std::ostringstream text;
  text << "plateau: hardware '" << h.name << "': " << field << " is " << value << ", expected " << expected;
  throw config_error(text.str());
}
} // namespace detail

// Throws config_error for the first figure that no machine can have, with its name and value.
inline void check(const hardware& h) {
  struct figure {
    const char* field;
    double hardware::*value;
  };
  constexpr figure rates[] = {
      {"fp32_flops", &hardware::fp32_flops},
      {"half_flops", &hardware::half_flops},
      {"device_memory_bytes_per_second", &hardware::device_memory_bytes_per_second},
      {"cache_bytes_per_second", &hardware::cache_bytes_per_second},
      {"host_to_device_bytes_per_second", &hardware::host_to_device_bytes_per_second},
      {"device_to_host_bytes_per_second", &hardware::device_to_host_bytes_per_second},
      {"host_link_bytes_per_second", &hardware::host_link_bytes_per_second},
      {"host_memory_bytes_per_second", &hardware::host_memory_bytes_per_second},
      {"node_link_bytes_per_second", &hardware::node_link_bytes_per_second},
      {"network_bytes_per_second", &hardware::network_bytes_per_second},
  };
  constexpr figure times[] = {
      {"operation_seconds", &hardware::operation_seconds},
      {"kernel_gap_seconds", &hardware::kernel_gap_seconds},
      {"copy_seconds", &hardware::copy_seconds},
      {"launch_seconds", &hardware::launch_seconds},
      {"host_exchange_seconds", &hardware::host_exchange_seconds},
      {"node_link_seconds", &hardware::node_link_seconds},
      {"network_seconds", &hardware::network_seconds},
  };
  for (const figure& f : rates)
    if (!(h.*f.value > 0) || !std::isfinite(h.*f.value))
      detail::impossible_figure(h, f.field, h.*f.value, "a positive, finite rate");
  for (const figure& f : times)
    if (!(h.*f.value >= 0) || !std::isfinite(h.*f.value))
      detail::impossible_figure(h, f.field, h.*f.value, "0 seconds or more, and finite");
  if (h.ranks_per_node < 1) detail::impossible_figure(h, "ranks_per_node", h.ranks_per_node, "1 or more");
}

} // namespace plateau::inline v0
