// SPDX-License-Identifier: Apache-2.0
//
// What a machine can do, as plain numbers: what the timeline of a dry run is made from. Rates are those that
// programs reach, not those of a data sheet, where both are known. A machine of your own is a struct of your
// own; `check` refuses what cannot be.
#pragma once

#include <plateau/config.hpp>

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

} // namespace plateau::inline v0
