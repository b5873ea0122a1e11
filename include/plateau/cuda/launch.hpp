// SPDX-License-Identifier: Apache-2.0
//
// How kernels start: element kernels with a thread for each index, row kernels with a block for each row, or
// with a warp where the kernel says so. A launch does not know how long rows are, but who writes a kernel
// does:
//
//   struct short_rows {
//     static constexpr int team_threads = 32;   // 32: a warp; 64, 128, ... 1024: a block of so many
//     ...
//
// Without it a block of 256. Grids that are larger than the device's are walked in strides, so any 64-bit
// number of elements or rows will do. Kernels are compiled by nvcc: a template that launches is instantiated
// in a .cu file, and other files name it by `extern template`.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/team.hpp>
#include <plateau/kernel_name.hpp>
#include <plateau/team.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

namespace plateau::inline v0::cudart {

// The threads of a row kernel's team.
template <class Kernel> constexpr int team_threads() {
  if constexpr (requires { Kernel::team_threads; })
    return Kernel::team_threads;
  else
    return 256;
}

#if defined(__CUDACC__)

namespace detail {
inline constexpr int block_threads = 256;                // where nothing is asked for
inline constexpr index_t most_blocks = index_t{1} << 30; // the device takes 2^31 - 1

// One block a multiprocessor is enough, here and below: told nothing, ptxas rather spills a register than
// lets fewer blocks be there.
template <class Kernel, class... Args>
__global__ void __launch_bounds__(block_threads, 1) run_elements(index_t n, Kernel kernel, Args... args) {
  const index_t stride = static_cast<index_t>(gridDim.x) * block_threads;
  for (index_t i = static_cast<index_t>(blockIdx.x) * block_threads + threadIdx.x; i < n; i += stride)
    kernel(i, args...);
}
// All threads of a block are at the same row, so that they meet at the same barriers.
template <int Threads, class Kernel, class... Args>
__global__ void __launch_bounds__(Threads, 1) run_block_rows(index_t n, Kernel kernel, Args... args) {
  block_team<Threads> team;
  for (index_t row = blockIdx.x; row < n; row += gridDim.x) kernel(team, row, args...);
}
template <class Kernel, class... Args>
__global__ void __launch_bounds__(block_threads, 1) run_warp_rows(index_t n, Kernel kernel, Args... args) {
  constexpr int warps = block_threads / 32;
  warp_team<warps> team;
  const index_t stride = static_cast<index_t>(gridDim.x) * warps;
  for (index_t row = static_cast<index_t>(blockIdx.x) * warps + threadIdx.x / 32; row < n; row += stride)
    kernel(team, row, args...);
}

inline cudaLaunchConfig_t configuration(cudaStream_t stream, index_t blocks, int threads) {
  cudaLaunchConfig_t config{}; // no shared memory at run time, no attributes
  config.gridDim = dim3(static_cast<unsigned>(std::min(blocks, most_blocks)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return config;
}
inline void check_launch(cudaError_t status, const char* kernel, source_line at) {
  if (status != cudaSuccess)
    fail(status, (std::string("cudaLaunchKernelEx of ") + kernel).c_str(), at.file, at.line);
}
constexpr index_t blocks_for(index_t n, index_t per_block) { return (n - 1) / per_block + 1; }
} // namespace detail

// n >= 1. `kernel` and `args` as the kernel receives them, without tags.
template <class Kernel, class... Args>
void launch(cudaStream_t stream, elements grid, source_line at, const Kernel& kernel, const Args&... args) {
  const cudaLaunchConfig_t config =
      detail::configuration(stream, detail::blocks_for(grid.n, detail::block_threads), detail::block_threads);
  const cudaError_t status =
      cudaLaunchKernelEx(&config, &detail::run_elements<Kernel, Args...>, grid.n, kernel, args...);
  detail::check_launch(status, kernel_name<Kernel>(), at);
}
template <class Kernel, class... Args>
void launch(cudaStream_t stream, rows grid, source_line at, const Kernel& kernel, const Args&... args) {
  constexpr int threads = team_threads<Kernel>();
  cudaError_t status = cudaSuccess;
  if constexpr (threads == 32) {
    const cudaLaunchConfig_t config = detail::configuration(
        stream, detail::blocks_for(grid.n, detail::block_threads / 32), detail::block_threads);
    status = cudaLaunchKernelEx(&config, &detail::run_warp_rows<Kernel, Args...>, grid.n, kernel, args...);
  } else {
    const cudaLaunchConfig_t config = detail::configuration(stream, grid.n, threads);
    status = cudaLaunchKernelEx(&config, &detail::run_block_rows<threads, Kernel, Args...>, grid.n, kernel,
                                args...);
  }
  detail::check_launch(status, kernel_name<Kernel>(), at);
}

#else

namespace detail {
template <class Kernel> inline constexpr bool compiled_by_nvcc = false;
}
template <class Grid, class Kernel, class... Args>
void launch(cudaStream_t, Grid, source_line, const Kernel&, const Args&...) {
  static_assert(
      detail::compiled_by_nvcc<Kernel>,
      "plateau cuda_backend: kernels are launched, and products, groupings and scans issued, where nvcc "
      "compiles: instantiate this template in a .cu file and declare it `extern template` here");
}

#endif

} // namespace plateau::inline v0::cudart
