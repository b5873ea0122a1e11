// SPDX-License-Identifier: Apache-2.0
//
// How the stand-in runs kernels.
#include "stand_in_tools.hpp"

#include <cstdint>
#include <stdexcept>

using namespace stand_in;

namespace {

__global__ void number(long n, int* out, int* where) {
  for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<long>(gridDim.x) * blockDim.x)
    out[i] = static_cast<int>(i);
  if (threadIdx.x == 0) where[blockIdx.x] = static_cast<int>(blockDim.x * 1000 + gridDim.x);
}
__global__ void coordinates(int* out) {
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[b * blockDim.x * blockDim.y * blockDim.z + t] = static_cast<int>(100 * b + t);
}
// Each thread reads what its neighbour wrote; `barriers` tells whether the kernel waits for it.
template <bool Barriers> __global__ void neighbours(int* out) {
  __shared__ int slots[96];
  slots[threadIdx.x] = static_cast<int>(1000 * blockIdx.x + threadIdx.x);
  if (Barriers) __syncthreads();
  out[blockIdx.x * 96 + threadIdx.x] = slots[(threadIdx.x + 1) % 96];
  if (Barriers) __syncthreads();
}
__global__ void by_warps(int* out) {
  __shared__ int slots[70];
  const unsigned lane = threadIdx.x % 32, first = threadIdx.x - lane;
  const unsigned here = blockDim.x - first < 32 ? blockDim.x - first : 32;
  const unsigned mask = here == 32 ? 0xffffffffu : (1u << here) - 1;
  for (int round = 0; round < 3 + static_cast<int>(first); ++round) { // warps differ
    slots[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
    __syncwarp(mask);
    out[threadIdx.x] = slots[first + (lane + 1) % here];
    __syncwarp(mask);
  }
}
__global__ void not_all_come(int) {
  if (threadIdx.x < 5) __syncthreads();
}
__global__ void two_barriers(int) {
  if (threadIdx.x < 5)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void half_a_warp(int) {
  if (threadIdx.x < 5)
    __syncwarp();
  else
    __syncthreads();
}
// Null is meant.
__attribute__((no_sanitize("undefined"))) __global__ void write_at(int* p, long i) { p[i] = 1; }
__global__ void throws(int) {
  if (threadIdx.x == 3) throw std::runtime_error("no");
}
struct pair_of_pointers {
  int count;
  const int* from;
  int* to;
};
__global__ void copy_pair(pair_of_pointers p, float narrow) {
  for (int i = 0; i < p.count; ++i) p.to[i] = p.from[i] + static_cast<int>(narrow);
}
struct large {
  char bytes[40000];
};
__global__ void takes_much(large) {}

template <class... P, class... A>
cudaError_t launch(unsigned blocks, unsigned threads, const stream& s, void (*kernel)(P...), A... args) {
  const cudaLaunchConfig_t c = launch_of(blocks, threads, s);
  return cudaLaunchKernelEx(&c, kernel, args...);
}
constexpr cs::thread_order orders[] = {cs::thread_order::forward, cs::thread_order::backward,
                                       cs::thread_order::shuffled};
cs::options in_order(cs::thread_order order, std::uint64_t seed = 1) {
  cs::options o;
  o.order = order;
  o.seed = seed;
  return o;
}

} // namespace

TEST_CASE("every thread of every block runs once, and knows which it is") {
  for (const auto order : orders) {
    with_settings back(in_order(order));
    stream s;
    device_array<int> a(1000), where(3), c(4 * 24);
    REQUIRE(launch(3, 100, s, number, 1000, a.p, where.p) == cudaSuccess);
    const auto v = a.download(s);
    for (int i = 0; i < 1000; ++i) REQUIRE(v[static_cast<std::size_t>(i)] == i);
    CHECK(where.download(s) == std::vector<int>(3, 100003));
    cudaLaunchConfig_t config = launch_of(2, 2, s);
    config.gridDim = dim3(2, 1, 2);
    config.blockDim = dim3(4, 3, 2);
    REQUIRE(cudaLaunchKernelEx(&config, coordinates, c.p) == cudaSuccess);
    const auto w = c.download(s);
    for (int b = 0; b < 4; ++b)
      for (int t = 0; t < 24; ++t) REQUIRE(w[static_cast<std::size_t>(24 * b + t)] == 100 * b + t);
  }
}

TEST_CASE("barriers of the block let every thread see what the others wrote") {
  for (const auto order : orders) {
    with_settings back(in_order(order));
    stream s;
    device_array<int> a(3 * 96);
    REQUIRE(launch(3, 96, s, neighbours<true>, a.p) == cudaSuccess);
    const auto v = a.download(s);
    for (int i = 0; i < 3 * 96; ++i)
      REQUIRE(v[static_cast<std::size_t>(i)] == 1000 * (i / 96) + (i % 96 + 1) % 96);
  }
}

TEST_CASE("without them an order shows it") {
  int wrong = 0;
  for (const auto order : orders) {
    with_settings back(in_order(order));
    stream s;
    device_array<int> a(3 * 96);
    REQUIRE(launch(3, 96, s, neighbours<false>, a.p) == cudaSuccess);
    const auto v = a.download(s);
    for (int i = 0; i < 3 * 96; ++i)
      wrong += v[static_cast<std::size_t>(i)] == 1000 * (i / 96) + (i % 96 + 1) % 96 ? 0 : 1;
  }
  CHECK(wrong > 0);
}

TEST_CASE("barriers of warps, whose warps need not keep step") {
  for (const auto order : orders)
    for (const unsigned seed : {1u, 2u, 3u}) {
      with_settings back(in_order(order, seed));
      stream s;
      device_array<int> a(70);
      REQUIRE(launch(1, 70, s, by_warps, a.p) == cudaSuccess);
      const auto v = a.download(s);
      for (int t = 0; t < 70; ++t) {
        const int first = t / 32 * 32, here = first == 64 ? 6 : 32;
        REQUIRE(v[static_cast<std::size_t>(t)] == first + (t - first + 1) % here + 2 + first);
      }
    }
}

TEST_CASE("a barrier that not all threads reach is an error, not a wait") {
  const auto fails = [](void (*kernel)(int), const char* what) {
    with_settings back({});
    stream s;
    REQUIRE(launch(2, 64, s, kernel, 0) == cudaSuccess);
    CHECK(cudaStreamSynchronize(s.s) == cudaErrorLaunchFailure);
    CHECK(found(what));
  };
  fails(not_all_come,
        "of 64 threads of block 0, 5 wait, 59 have left the kernel; thread 0 waits in __syncthreads");
  fails(two_barriers, "64 wait, 0 have left the kernel");
  fails(half_a_warp, "__syncwarp");
  // Afterwards kernels run as before.
  stream s;
  device_array<int> a(96);
  REQUIRE(launch(1, 96, s, neighbours<true>, a.p) == cudaSuccess);
  CHECK(a.download(s)[95] == 0);
}

TEST_CASE("a kernel that leaves its memory ends the device" * doctest::skip(!catches_faults)) {
  for (const long i : {256L, -1000L * 1024}) {
    with_settings back({});
    stream s;
    device_array<int> a(64), b(64);
    gate g; // launches are refused as soon as the device has failed
    REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
    REQUIRE(launch(1, 1, s, write_at, a.p, i) == cudaSuccess);
    REQUIRE(launch(1, 1, s, write_at, b.p, 0) == cudaSuccess); // does not run
    g.open = true;
    CHECK(cudaStreamSynchronize(s.s) == cudaErrorIllegalAddress);
    CHECK(found("a kernel touches memory that is not its own"));
  }
  with_settings back({});
  stream s;
  int* gone = nullptr;
  REQUIRE(cudaMalloc(&gone, 4) == cudaSuccess);
  REQUIRE(cudaFree(gone) == cudaSuccess);
  REQUIRE(launch(1, 1, s, write_at, gone, 0) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorIllegalAddress);
  CHECK(found("(device memory)"));
}
TEST_CASE("null is not an address of a kernel" * doctest::skip(!catches_faults)) {
  with_settings back({});
  stream s;
  REQUIRE(launch(1, 1, s, write_at, static_cast<int*>(nullptr), 0) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorIllegalAddress);
  CHECK(found("a kernel touches memory"));
}

TEST_CASE("an exception that leaves a kernel ends the device") {
  with_settings back({});
  stream s;
  REQUIRE(launch(1, 8, s, throws, 0) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorLaunchFailure);
  CHECK(found("an exception leaves a kernel, which has none on a GPU: no"));
}

TEST_CASE("arguments are copied, converted and translated") {
  stream s;
  device_array<int> from(std::vector<int>{5, 6, 7}, s), to(3);
  {
    int count = 3; // gone before the kernel runs
    REQUIRE(launch(1, 1, s, copy_pair, pair_of_pointers{count, from.p, to.p}, 2.9) == cudaSuccess);
    count = 0;
  }
  CHECK(to.download(s) == std::vector<int>{7, 8, 9});
  // A kernel may read and write pinned memory.
  pinned_array<int> p(4);
  for (int i = 0; i < 4; ++i) p.p[i] = i;
  REQUIRE(launch(1, 1, s, copy_pair, pair_of_pointers{3, p.p + 1, p.p}, 0.0) == cudaSuccess);
  s.finish();
  CHECK(p.p[0] == 1);
  CHECK(p.p[2] == 3);
}

TEST_CASE("launches that no device can do are refused") {
  stream s;
  int* const p = nullptr;
  CHECK(launch(0, 1, s, coordinates, p) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 0, s, coordinates, p) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 1025, s, coordinates, p) == cudaErrorInvalidConfiguration);
  CHECK(launch(2147483648u, 1, s, coordinates, p) == cudaErrorInvalidConfiguration);
  cudaLaunchConfig_t c = launch_of(1, 32, s);
  c.gridDim.y = 65536;
  CHECK(cudaLaunchKernelEx(&c, coordinates, p) == cudaErrorInvalidConfiguration);
  c = launch_of(1, 32, s);
  c.blockDim = dim3(32, 33);
  CHECK(cudaLaunchKernelEx(&c, coordinates, p) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 1, s, takes_much, large{}) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  cudaFuncAttributes attributes{};
  CHECK(cudaFuncGetAttributes(&attributes, coordinates) == cudaSuccess);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  cs::options o;
  o.devices = 2;
  with_settings back(o);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(launch(1, 1, s, coordinates, p) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}
