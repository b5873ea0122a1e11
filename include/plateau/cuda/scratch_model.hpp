// SPDX-License-Identifier: Apache-2.0
//
// How much scratch the operations of cuda_backend need, without CUDA: plain functions of the shape, for
// working sets and for dry runs (`dry_run<cuda_scratch>`). cuda_backend takes its sizes from here, so the
// bytes are equal by construction; what the libraries inside want is bounded from above, for every GPU and
// every CCCL, and compared with their own answers at each call.
#pragma once

#include <plateau/config.hpp>
#include <plateau/gemm.hpp>

#include <cstddef>

namespace plateau::inline v0 {

namespace cudart {

// What cuBLAS may use: the size that NVIDIA recommends for Hopper, 8 times that for what came before. cuBLAS
// chooses among the algorithms that fit, so that less would cost speed only.
inline constexpr std::size_t blas_workspace_bytes = std::size_t{32} << 20;
// cuBLAS wants its workspace at a multiple of 256; scratch begins at a multiple of 16.
inline constexpr std::size_t blas_alignment = 256;
// A grouped product keeps the addresses of its operands on the device, those of so many groups at a time,
// behind the workspace.
inline constexpr int groups_at_once = 64;
inline constexpr std::size_t blas_table_bytes = std::size_t{3 * groups_at_once} * sizeof(void*);

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// cub::DeviceRadixSort::SortPairs of n 32-bit keys with values of up to 64 bits and 64-bit offsets. From
// device/dispatch/dispatch_radix_sort.cuh, which is the same in CCCL 2.3 to 3.0 for compute capability 6.0
// and later ("onesweep"): temporary storage is the sum of
//   bins      portions * passes * 256 * 8,  a portion being the largest multiple of a tile below 2^28 items
//   lookback  tiles of the largest portion * 256 * 4
//   keys      n * 4,  values n * 8          (the second buffers)
//   counters  portions * passes * 4
// each rounded up to 256, and 255 more. There are at most 4 passes, of 8 bits each. The smallest tile of the
// tuning tables is 2,816 items; 1,024 leaves room, as do portions of 2^27.
constexpr std::size_t radix_sort_bytes(index_t n) {
  if (n == 0) return 0;
  const auto items = static_cast<std::size_t>(n);
  const std::size_t portions = items / (std::size_t{1} << 27) + 1, passes = 4;
  const std::size_t largest = items < (std::size_t{1} << 28) ? items : std::size_t{1} << 28;
  const std::size_t tiles = largest / 1024 + 1;
  return rounded_up(portions * passes * 256 * 8, 256) + rounded_up(tiles * 256 * 4, 256) +
         rounded_up(items * 4, 256) + rounded_up(items * 8, 256) + rounded_up(portions * passes * 4, 256) +
         255;
}

// cub::DeviceScan::ExclusiveSum of n 64-bit integers. From device/dispatch/dispatch_scan.cuh and
// agent/single_pass_scan_operators.cuh: a status and a value, 16 bytes, for each tile and for 32 before the
// first one, rounded up to 256, and 255 more; in CCCL 3 this sum is rounded and enlarged so once again. The
// smallest tile of the tuning tables for 8 bytes is 896 items; 512 leaves room.
constexpr std::size_t scan_bytes(index_t n) {
  if (n == 0) return 0;
  const std::size_t tiles = static_cast<std::size_t>(n) / 512 + 1;
  return rounded_up(rounded_up((tiles + 32) * 16, 256) + 255, 256) + 255;
}

// The parts of group_by_key's scratch, from its beginning: keys, sorted keys, positions, and the sort's own.
struct group_by_key_parts {
  std::size_t sorted_keys, positions, sort, total;

  constexpr explicit group_by_key_parts(index_t n)
      : sorted_keys(rounded_up(static_cast<std::size_t>(n) * 4, 16)), positions(2 * sorted_keys),
        sort(positions + rounded_up(static_cast<std::size_t>(n) * 8, 16)), total(sort + radix_sort_bytes(n)) {
  }
};

} // namespace cudart

// The scratch model of cuda_backend.
struct cuda_scratch {
  static constexpr bool row_invariant = false; // cuBLAS picks the algorithm by the number of rows, too

  // The same for every product that multiplies anything, batches and groups included.
  template <class A, class B, class C>
  static constexpr std::size_t gemm_scratch_bytes(transpose, transpose, index_t m, index_t n, index_t k) {
    if (m == 0 || n == 0 || k == 0) return 0;
    return cudart::blas_alignment + cudart::blas_workspace_bytes + cudart::blas_table_bytes;
  }
  static constexpr std::size_t group_by_key_scratch_bytes(index_t n, index_t) {
    return cudart::group_by_key_parts(n).total;
  }
  static constexpr std::size_t exclusive_scan_scratch_bytes(index_t n) { return cudart::scan_bytes(n); }
};

} // namespace plateau::inline v0
