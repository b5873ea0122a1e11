// SPDX-License-Identifier: Apache-2.0
//
// Teams of row kernels on a GPU: a block, or a warp where rows are short. Every member function ends with a
// barrier of the team, as the rules of kernels ask (plateau/team.hpp). `reduce` gives each member every
// size()th value, in order, and joins the members' results in an order that the size of the team fixes: the
// same bits in every run, not those of the host.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/cccl.hpp>
#include <plateau/team.hpp>

#if defined(__CUDACC__)

#include <cstring>
#include <type_traits>

namespace plateau::inline v0::cudart {

namespace detail {
// A value in shared memory, which may have no constructor to run.
template <class T> struct alignas(alignof(T)) shared_value {
  unsigned char bytes[sizeof(T)];

  __device__ void set(const T& value) { *reinterpret_cast<T*>(bytes) = value; }
  __device__ T get() const { return *reinterpret_cast<const T*>(bytes); }
};
} // namespace detail

// The whole block, of `Threads` threads in one dimension.
template <int Threads> class block_team {
  static_assert(Threads % 32 == 0 && Threads >= 32 && Threads <= 1024,
                "plateau: a block is 1 to 32 whole warps");

 public:
  __device__ static index_t size() { return Threads; }
  __device__ static index_t rank() { return static_cast<index_t>(threadIdx.x); }

  template <class F> __device__ void for_each(index_t n, F f) const {
    for (index_t i = rank(); i < n; i += Threads) f(i);
    __syncthreads();
  }
  template <class Radicand, class F> __device__ void for_each_sqrt(index_t n, Radicand radicand, F f) const {
    for_each(n, [=](index_t i) { f(i, ::sqrtf(radicand(i))); });
  }
  template <class F> __device__ void once(F f) const {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  template <class T, class Op, class F> __device__ T reduce(index_t n, T identity, Op op, F f) const {
    static_assert(std::is_trivially_copyable_v<T>,
                  "plateau team: reduce needs a trivially copyable value type");
    using join = block_reduce<T, Threads>;
    __shared__ typename join::TempStorage work;
    __shared__ detail::shared_value<T> result;
    T mine = identity;
    for (index_t i = rank(); i < n; i += Threads) mine = op(mine, static_cast<T>(f(i)));
    const T joined = join(work).Reduce(mine, op); // thread 0 has it
    if (threadIdx.x == 0) result.set(joined);
    __syncthreads(); // all members see the result, and what f wrote
    const T all = result.get();
    __syncthreads(); // before the next reduction overwrites it, or `work`
    return all;
  }
};

// One warp of a block that holds `Warps` of them, each at a row of its own: no barrier of the block may be
// used.
template <int Warps> class warp_team {
 public:
  static constexpr int threads = 32;

  __device__ static index_t size() { return threads; }
  __device__ static index_t rank() { return static_cast<index_t>(threadIdx.x % threads); }

  template <class F> __device__ void for_each(index_t n, F f) const {
    for (index_t i = rank(); i < n; i += threads) f(i);
    __syncwarp();
  }
  template <class Radicand, class F> __device__ void for_each_sqrt(index_t n, Radicand radicand, F f) const {
    for_each(n, [=](index_t i) { f(i, ::sqrtf(radicand(i))); });
  }
  template <class F> __device__ void once(F f) const {
    if (rank() == 0) f();
    __syncwarp();
  }
  template <class T, class Op, class F> __device__ T reduce(index_t n, T identity, Op op, F f) const {
    static_assert(std::is_trivially_copyable_v<T>,
                  "plateau team: reduce needs a trivially copyable value type");
    using join = warp_reduce<T>;
    __shared__ typename join::TempStorage work[Warps];
    __shared__ detail::shared_value<T> results[Warps];
    const unsigned warp = threadIdx.x / threads;
    T mine = identity;
    for (index_t i = rank(); i < n; i += threads) mine = op(mine, static_cast<T>(f(i)));
    const T joined = join(work[warp]).Reduce(mine, op); // lane 0 has it
    if (rank() == 0) results[warp].set(joined);
    __syncwarp();
    const T all = results[warp].get();
    __syncwarp();
    return all;
  }
};

} // namespace plateau::inline v0::cudart

#endif
