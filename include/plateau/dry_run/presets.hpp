// SPDX-License-Identifier: Apache-2.0
//
// Machines that one may not own. Each figure has its source beside it: a rate that programs have been seen to
// reach, or a data sheet's figure times a stated factor. Change a field of the copy to ask what if.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/hardware.hpp>

#include <string>

namespace plateau::inline v0 {

// NVIDIA H200 SXM 141 GB, eight to a node with NVLink, a 400 Gb/s network adapter each. Data sheet: "NVIDIA
// H200 Tensor Core GPU" (rates of tensor cores dense, half of those that it quotes with sparsity).
inline hardware h200() {
  hardware h;
  h.name = "H200";
  // Data sheet: 67 TFLOP/s fp32 outside the tensor cores, 989 TFLOP/s bf16 and fp16. Factors: large products
  // of cuBLAS reach about 0.75 of either, since the clock falls under their load.
  h.fp32_flops = 0.75 * 67e12;
  h.half_flops = 0.75 * 989e12;
  // Data sheet: 4.8 TB/s HBM3e, 141 GB. Factor: 0.9, what streaming kernels reach of HBM.
  h.device_memory_bytes_per_second = 0.9 * 4.8e12;
  h.device_bytes = 141'000'000'000;
  // "NVIDIA H100 Tensor Core GPU Architecture" (the same chip): L2 of 50 MB in two halves. No data sheet has
  // its bandwidth. Assumed: twice what the memory reaches.
  h.cache_bytes = 50'000'000;
  h.cache_bytes_per_second = 2 * 0.9 * 4.8e12;
  // Assumed: a kernel that has nothing to do takes about 2 microseconds from its stream's last to its next.
  h.operation_seconds = 2e-6;
  // PCI Express 5.0 x16: 64 GB/s each way less encoding and packet headers. Factor: 0.86 each way; both ways
  // together 0.8 of the two, since copies of both directions meet in the host's memory.
  h.host_to_device_bytes_per_second = 0.86 * 64e9;
  h.device_to_host_bytes_per_second = 0.86 * 64e9;
  h.host_link_bytes_per_second = 0.8 * 2 * 0.86 * 64e9;
  // Assumed: what a copy over PCI Express takes to begin and to end.
  h.copy_seconds = 8e-6;
  // HGX H200: 8 GPUs, 2 sockets of 8 channels DDR5-4800 each: 614 GB/s. Factor: 0.75 of it for streams.
  h.ranks_per_node = 8;
  h.host_memory_bytes_per_second = 0.75 * 614e9;
  // Assumed: what cudaLaunchKernel keeps a thread of the host for.
  h.launch_seconds = 3e-6;
  // Assumed: a small message between hosts by MPI, in the node or across.
  h.host_exchange_seconds = 5e-6;
  // Data sheet: NVLink 900 GB/s, both ways together. Factor: 0.8 of 450 each way.
  h.node_link_bytes_per_second = 0.8 * 450e9;
  h.node_link_seconds = 10e-6; // assumed: a grouped send and receive of NCCL
  // InfiniBand NDR: 400 Gb/s, 50 GB/s, each way. Factor: 0.92.
  h.network_bytes_per_second = 0.92 * 50e9;
  h.network_seconds = 15e-6; // assumed, as above
  return h;
}

} // namespace plateau::inline v0
