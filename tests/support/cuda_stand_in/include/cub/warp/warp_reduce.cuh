// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the reduction of a whole warp of a block in one dimension. Lane 0 gets the result, the others get
// rubbish.
#pragma once

#include <cub/version.cuh>
#include <cuda_runtime.h>
#include <cuda_stand_in/team_storage.hpp>

namespace cub {

template <class T, int Lanes = 32> class WarpReduce {
  static_assert(Lanes == 32, "the stand-in reduces whole warps");

 public:
  using TempStorage = cuda_stand_in::team_storage<T, Lanes>;

  explicit WarpReduce(TempStorage& storage) : storage_(storage) {}

  template <class Op> T Reduce(T input, Op op) {
    const unsigned lane = threadIdx.x % Lanes;
    storage_.put(lane, input);
    __syncwarp();
    return lane == 0 ? joined(0, 1, op) : cuda_stand_in::no_result<T>();
  }

 private:
  template <class Op> T joined(unsigned lane, unsigned step, Op op) const {
    if (step == Lanes) return storage_.get(lane);
    const T low = joined(lane, 2 * step, op);
    return op(low, joined(lane + step, 2 * step, op));
  }
  TempStorage& storage_;
};

} // namespace cub
