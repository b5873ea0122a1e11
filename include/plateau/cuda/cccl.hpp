// SPDX-License-Identifier: Apache-2.0
//
// CCCL as the toolkits 12.4 to 13.x bring it, 2.3 to 3.x: the one place that knows of the versions, and the
// reductions of a block and a warp. Device-wide algorithms are in group_by_key.hpp and scan.hpp. Only nvcc
// reads any of it.
#pragma once

#include <plateau/config.hpp>

#include <type_traits>

#if defined(__CUDACC__)
#include <cub/block/block_reduce.cuh>
#include <cub/version.cuh>
#include <cub/warp/warp_reduce.cuh>

static_assert(CUB_VERSION >= 200300, "plateau: needs CCCL 2.3 (CUDA 12.4) or later");

namespace plateau::inline v0::cudart {

// Reduces inside warps by shuffles, then over the warps one after the other: the order depends on the number
// of threads alone. CCCL 3 has a variant of it that is not deterministic, which is why this one is named.
template <class T, int Threads>
using block_reduce = cub::BlockReduce<T, Threads, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
template <class T> using warp_reduce = cub::WarpReduce<T>;

// What cub::DeviceScan counts its elements in: an int up to CCCL 2.6, and the caller's type from 2.7 on.
using scan_count = std::conditional_t<(CUB_VERSION >= 200700), index_t, int>;

} // namespace plateau::inline v0::cudart
#endif
