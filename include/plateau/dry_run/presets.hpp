// SPDX-License-Identifier: Apache-2.0
//
// Machines that one may not own. Each figure has its source beside it: a rate that somebody has measured, or
// a data sheet's figure times a stated factor, or the word "assumed". Change a field of the copy to ask what
// would be if.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/hardware.hpp>

#include <string>

namespace plateau::inline v0 {

// NVIDIA H200 SXM, 141 GB, eight to a node with NVLink and a 400 Gb/s network adapter each.
//   [1] NVIDIA, H200 Tensor Core GPU, data sheet (without sparsity)
//   [2] Azure, AI-benchmarking-guide, ND_H200_v5_results.md: measured on a node of eight H200 SXM
//   [3] Bekman, ml-engineering, compute/accelerator: maximum achievable matmul FLOPS, measured
//   [4] github.com/NVIDIA/nccl-tests, issues 212 and 267: NCCL's developers on what NCCL reaches
inline hardware h200() {
  hardware h;
  h.name = "H200";
  h.fp32_flops = 0.75 * 67e12; // [1] 67 outside the tensor cores; factor assumed
  h.half_flops =
      0.9 * 794.5e12; // [3] 794.5 at the best shape, of 989 in [1]; factor for other shapes assumed
  h.device_memory_bytes_per_second = 4.15e12;    // [2] triad of BabelStream; 4.8 in [1]
  h.cache_bytes_per_second = 2 * 4.15e12;        // assumed: twice the memory
  h.cache_bytes = 50'000'000;                    // NVIDIA, H100 architecture white paper (the same chip)
  h.device_bytes = 141'000'000'000;              // [1]
  h.operation_seconds = 2e-6;                    // assumed: from a small kernel's start to the next one's
  h.copy_seconds = 8e-6;                         // assumed
  h.host_to_device_bytes_per_second = 52e9;      // [2] nvbandwidth, PCI Express 5.0 x16
  h.device_to_host_bytes_per_second = 52e9;      // [2]
  h.host_link_bytes_per_second = 0.8 * 2 * 52e9; // both ways at a time; factor assumed
  h.ranks_per_node = 8;
  h.host_memory_bytes_per_second = 0.75 * 614.4e9; // 2 sockets x 8 channels of DDR5-4800; factor assumed
  h.launch_seconds = 3e-6;                         // assumed: cudaLaunchKernel and what leads to it
  h.host_exchange_seconds = 5e-6;                  // assumed: a small message between hosts
  h.node_link_bytes_per_second = 370e9;            // [4] 212: NVLink's 450 each way less protocol
  h.node_link_seconds = 10e-6;                     // assumed: a grouped send and receive
  h.network_bytes_per_second = 48e9;               // [4] 267: a ConnectX-7 at 400 Gb/s, of 50
  h.network_seconds = 15e-6;                       // assumed
  return h;
}

} // namespace plateau::inline v0
