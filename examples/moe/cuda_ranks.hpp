// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a run on GPUs: threads of this process, rank r on GPU r modulo their number, so that
// one GPU is enough for any number of ranks; or this process itself where it is one of several.
#pragma once

#include "cuda_runs.hpp"
#include "input_error.hpp"
#include "training_run.hpp"
#if defined(MOE_HAS_NCCL)
#include "nccl_ranks.hpp"
#endif

#include <plateau/any_communicator.hpp>
#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>
#include <plateau/run_ranks.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <cuda_runtime.h>

namespace moe {

// The GPUs that this process sees; 0 where asking fails.
inline int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct cuda_ranks {
  process_communicator* processes = nullptr; // null: threads

  template <class RankFunction>
  void operator()(int ranks, std::chrono::seconds deadline, RankFunction&& run_rank) const {
    const int gpus = gpu_count();
    if (processes != nullptr) {
#if defined(MOE_HAS_NCCL)
      return run_process_on_gpu(*processes, gpus, run_rank);
#else
      throw input_error{"--backend cuda: this program was built without NCCL, which ranks that are processes "
                        "need; use --communicator threads"};
#endif
    }
    plateau::run_ranks<plateau::cuda_thread_communicator>(
        ranks,
        [&](plateau::cuda_thread_communicator& plain) {
          plateau::any_communicator<plateau::cuda_backend::stream> world(&plain);
          const std::string owner = "rank " + std::to_string(plain.rank());
          const int gpu = gpus == 0 ? 0 : plain.rank() % gpus;
          run_rank(world, owner.c_str(), gpu);
        },
        {.deadline = deadline});
  }
};

// What the GPUs are called, and what drives them.
inline gpu_summary gpus_used(const options& o) {
  gpu_summary gpus;
  gpus.count = static_cast<int>(std::min<std::int64_t>(gpu_count(), o.ranks));
  cudaDeviceProp first{};
  if (cudaGetDeviceProperties(&first, 0) == cudaSuccess) {
    gpus.name = first.name;
    gpus.bytes = first.totalGlobalMem;
  }
  static_cast<void>(cudaDriverGetVersion(&gpus.driver));
  static_cast<void>(cudaRuntimeGetVersion(&gpus.runtime));
  return gpus;
}

template <class T> std::optional<run_result> run_on_cuda(const training_job& job) {
  auto result = run_training<plateau::cuda_backend, T>(job, cuda_ranks{job.processes});
  if (result) result->gpus = gpus_used(job.config);
  return result;
}

} // namespace moe
