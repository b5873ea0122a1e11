// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the reduction of a block in one dimension. Thread 0 gets the result, the others get rubbish.
#pragma once

#include <cub/version.cuh>
#include <cuda_runtime.h>
#include <cuda_stand_in/team_storage.hpp>

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};

template <class T, int Threads, BlockReduceAlgorithm Algorithm = BLOCK_REDUCE_WARP_REDUCTIONS>
class BlockReduce {
  static_assert(Threads % 32 == 0, "the stand-in reduces blocks of whole warps");

 public:
  using TempStorage = cuda_stand_in::team_storage<T, Threads>;

  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  // Within warps by halves, then over the warps one after another.
  template <class Op> T Reduce(T input, Op op) {
    if (threadIdx.x == 0 && (blockDim.x != Threads || blockDim.y != 1 || blockDim.z != 1))
      cuda_stand_in::report("a block of another size than its cub::BlockReduce was made for");
    storage_.put(threadIdx.x, input);
    __syncthreads();
    if (threadIdx.x != 0) return cuda_stand_in::no_result<T>();
    T sum = joined(0, 0, 1, op);
    for (unsigned first = 32; first < Threads; first += 32) sum = op(sum, joined(first, 0, 1, op));
    return sum;
  }

 private:
  // What lane 0 of the warp has after shuffles from the halves down to single lanes.
  template <class Op> T joined(unsigned first, unsigned lane, unsigned step, Op op) const {
    if (step == 32) return storage_.get(first + lane);
    const T low = joined(first, lane, 2 * step, op);
    return op(low, joined(first, lane + step, 2 * step, op));
  }
  TempStorage& storage_;
};

} // namespace cub
