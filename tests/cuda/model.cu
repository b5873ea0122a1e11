// SPDX-License-Identifier: Apache-2.0
//
// The reference model under nvcc, compiled only: a backend that is the archetype in everything but its
// launches, which are real, so that every kernel of the model and of the library is compiled for the device,
// with a block as its team.
#define FMT_USE_CONSTEXPR 1 // fmt 9 does not compile under nvcc without it

#include "../../examples/moe/trainer.hpp"

#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>

#include <plateau/checks.hpp>

namespace compiled_model {

namespace pl = plateau;
using pl::index_t;

constexpr int block_threads = 128;

// The block as a team, by barriers alone; the order of its sums is fixed too.
struct block_team {
  __device__ static index_t size() { return block_threads; }
  __device__ static index_t rank() { return threadIdx.x; }
  template <class F> __device__ void for_each(index_t n, F f) const {
    for (index_t i = threadIdx.x; i < n; i += block_threads) f(i);
    __syncthreads();
  }
  template <class Radicand, class F> __device__ void for_each_sqrt(index_t n, Radicand radicand, F f) const {
    for_each(n, [=](index_t i) { f(i, sqrtf(radicand(i))); });
  }
  template <class F> __device__ void once(F f) const {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  template <class T, class Op, class F> __device__ T reduce(index_t n, T identity, Op op, F f) const {
    __shared__ alignas(16) unsigned char memory[block_threads * sizeof(T)];
    T* lanes = reinterpret_cast<T*>(memory);
    T mine = identity;
    for (index_t i = threadIdx.x; i < n; i += block_threads) mine = op(mine, static_cast<T>(f(i)));
    lanes[threadIdx.x] = mine;
    __syncthreads();
    for (int width = block_threads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width) lanes[threadIdx.x] = op(lanes[threadIdx.x], lanes[threadIdx.x + width]);
      __syncthreads();
    }
    const T all = lanes[0];
    __syncthreads();
    return all;
  }
};

template <class Kernel, class... Args> __global__ void run_elements(index_t n, Kernel kernel, Args... args) {
  for (index_t i = blockIdx.x * index_t(blockDim.x) + threadIdx.x; i < n;
       i += index_t(gridDim.x) * blockDim.x)
    kernel(i, args...);
}
template <class Kernel, class... Args> __global__ void run_rows(Kernel kernel, Args... args) {
  block_team team;
  kernel(team, index_t(blockIdx.x), args...);
}

struct compiling_backend : archetypes::archetype_backend {
  template <class Kernel, class... Args>
  void launch(pl::on<stream>, pl::elements grid, Kernel kernel, Args... args) {
    pl::check_kernel<compiling_backend, pl::elements, Kernel, Args...>();
    run_elements<<<256, 256>>>(grid.n, kernel, pl::unwrap(args)...);
  }
  template <class Kernel, class... Args>
  void launch(pl::on<stream>, pl::rows grid, Kernel kernel, Args... args) {
    pl::check_kernel<compiling_backend, pl::rows, Kernel, Args...>();
    run_rows<<<static_cast<unsigned>(grid.n), block_threads>>>(kernel, pl::unwrap(args)...);
  }
};

static_assert(pl::check_backend<compiling_backend>());

} // namespace compiled_model

template class moe::trainer<compiled_model::compiling_backend, archetypes::archetype_communicator, float>;
template class moe::trainer<compiled_model::compiling_backend, archetypes::archetype_communicator,
                            plateau::bfloat16>;
