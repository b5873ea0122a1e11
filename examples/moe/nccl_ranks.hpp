// SPDX-License-Identifier: Apache-2.0
//
// Ranks on GPUs that are processes: NCCL moves the data, MPI carries what the host threads say to each other.
// NCCL refuses two ranks on one GPU, so each process takes one of its machine's for itself.
#pragma once

#include "input_error.hpp"
#include "training_job.hpp"

#include <plateau/any_communicator.hpp>
#include <plateau/cuda/device.hpp>
#include <plateau/digest.hpp>
#include <plateau/mpi.hpp>
#include <plateau/nccl.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <unistd.h>

namespace moe {

// The number of a process's GPU: that of the process among those of its machine. `machines` and `gpus`, by
// process: which machine it is on, and how many GPUs it sees. Throws input_error, the same on all processes,
// where a machine has fewer GPUs than processes.
inline int gpu_of_process(int rank, const std::vector<std::int64_t>& machines,
                          const std::vector<std::int64_t>& gpus) {
  int mine = 0;
  for (std::size_t r = 0; r < machines.size(); ++r) {
    std::int64_t here = 0;
    for (std::size_t q = 0; q < machines.size(); ++q) here += machines[q] == machines[r] ? 1 : 0;
    if (here > gpus[r])
      throw input_error{fmt::format(
          "--backend cuda: {} processes run on the machine of rank {}, which has {} GPU{}, and NCCL needs "
          "one "
          "for each; start as many as there are, or let ranks be threads: one process with --communicator "
          "threads --ranks {}",
          here, r, gpus[r], gpus[r] == 1 ? "" : "s", machines.size())};
    if (r < static_cast<std::size_t>(rank) && machines[r] == machines[static_cast<std::size_t>(rank)]) ++mine;
  }
  return mine;
}

// Collective over the processes. A launcher may show each process of a machine GPUs of its own, all of them
// from number 0 on: those count as different machines.
inline int own_gpu(process_communicator& processes, int gpus) {
  char name[256] = {};
  static_cast<void>(gethostname(name, sizeof name - 1));
  plateau::digest machine;
  machine.add(name);
  cudaDeviceProp first;
  if (gpus > 0 && cudaGetDeviceProperties(&first, 0) == cudaSuccess)
    for (const char part : first.uuid.bytes) machine.add(static_cast<std::int64_t>(part));
  const std::int64_t mine[2] = {static_cast<std::int64_t>(machine.value()), gpus};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(processes.size())), machines, counts;
  processes.host_exchange(mine, all, "machines and their GPUs");
  for (std::size_t i = 0; i < all.size(); i += 2) {
    machines.push_back(all[i]);
    counts.push_back(all[i + 1]);
  }
  return gpu_of_process(processes.rank(), machines, counts);
}

// Calls run_rank(world, owner, gpu) for this process's rank.
template <class RankFunction>
void run_process_on_gpu(process_communicator& processes, int gpus, RankFunction& run_rank) {
  auto* const mpi = processes.target<plateau::mpi_communicator>();
  if (mpi == nullptr) throw input_error{"--backend cuda: ranks that are processes must be those of MPI"};
  const int gpu = own_gpu(processes, gpus);
  const std::string owner = "rank " + std::to_string(processes.rank());
  plateau::cudart::open_device(owner.c_str(), gpu);
  plateau::nccl_communicator comm{*mpi};
  plateau::any_communicator<plateau::cuda_backend::stream> world(&comm);
  run_rank(world, owner.c_str(), gpu);
}

} // namespace moe
