// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the stand-in share: a stream that goes by itself, the findings as one text, and settings
// that are put back.
#pragma once

#include <doctest/doctest.h>

#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace stand_in {

namespace cs = cuda_stand_in;

// The thread sanitizer leaves no fault to others; both end a process their own way.
#if defined(CUDA_STAND_IN_TSAN)
inline constexpr bool catches_faults = false, ends_plainly = false, sees_races = true;
#elif defined(CUDA_STAND_IN_ASAN)
inline constexpr bool catches_faults = true, ends_plainly = false, sees_races = false;
#else
inline constexpr bool catches_faults = true, ends_plainly = true, sees_races = false;
#endif

struct stream {
  cudaStream_t s = nullptr;
  stream() { REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess); }
  stream(const stream&) = delete;
  ~stream() { cudaStreamDestroy(s); }
  void finish() const { REQUIRE(cudaStreamSynchronize(s) == cudaSuccess); }
};
// A host function that holds its stream up until it is opened.
struct gate {
  std::atomic<bool> open{false};
  std::atomic<int> passed{0};
  static void wait(void* p) {
    auto& g = *static_cast<gate*>(p);
    while (!g.open.load()) std::this_thread::yield();
    ++g.passed;
  }
};
struct event {
  cudaEvent_t e = nullptr;
  explicit event(unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaEventCreateWithFlags(&e, flags) == cudaSuccess);
  }
  event(const event&) = delete;
  ~event() { cudaEventDestroy(e); }
};
template <class T> struct device_array {
  T* p = nullptr;
  std::size_t n;
  explicit device_array(std::size_t count) : n(count) {
    REQUIRE(cudaMalloc(&p, count * sizeof(T)) == cudaSuccess);
  }
  device_array(const std::vector<T>& values, const stream& s) : device_array(values.size()) {
    REQUIRE(cudaMemcpyAsync(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, s.s) == cudaSuccess);
  }
  device_array(const device_array&) = delete;
  ~device_array() { cudaFree(p); }
  std::vector<T> download(const stream& s) const {
    std::vector<T> values(n);
    REQUIRE(cudaMemcpyAsync(values.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, s.s) == cudaSuccess);
    return values;
  }
};
template <class T> struct pinned_array {
  T* p = nullptr;
  explicit pinned_array(std::size_t n) { REQUIRE(cudaMallocHost(&p, n * sizeof(T)) == cudaSuccess); }
  pinned_array(const pinned_array&) = delete;
  ~pinned_array() { cudaFreeHost(p); }
};

// Everything that was found, one finding a line, and nothing is left for the end of the program.
inline std::string findings() {
  std::string all;
  for (const std::string& one : cs::take_findings()) all += one + "\n";
  return all;
}
inline bool found(const char* what) {
  const std::string all = findings();
  if (all.find(what) != std::string::npos) return true;
  MESSAGE("'" << all << "' does not say '" << what << "'");
  return false;
}
// Settings for as long as it lives; afterwards devices are sound again, too.
struct with_settings {
  explicit with_settings(const cs::options& o) { cs::configure(o); }
  with_settings(const with_settings&) = delete;
  ~with_settings() {
    cs::configure({});
    cs::forget_device_errors();
    cudaGetLastError();
  }
};

inline cudaLaunchConfig_t launch_of(unsigned blocks, unsigned threads, const stream& s) {
  cudaLaunchConfig_t c{};
  c.gridDim = dim3(blocks);
  c.blockDim = dim3(threads);
  c.stream = s.s;
  return c;
}

} // namespace stand_in
