// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: copies and host functions, the work of streams apart from kernels.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/copies.hpp>
#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/stream.hpp>

#include <driver_types.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

inline cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t count, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
  using namespace cuda_stand_in;
  return call("cudaMemcpyAsync", [=] {
    return copy(dst, {count, count, 1}, src, {count, count, 1}, kind, stream);
  });
}
inline cudaError_t cudaMemcpy2DAsync(void* dst, std::size_t dpitch, const void* src, std::size_t spitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind kind,
                                     cudaStream_t stream = nullptr) {
  using namespace cuda_stand_in;
  return call("cudaMemcpy2DAsync", [=] {
    constexpr std::size_t most = 2147483647;
    if (width > dpitch || width > spitch || dpitch > most || spitch > most) return cudaErrorInvalidPitchValue;
    return copy(dst, {dpitch, width, height}, src, {spitch, width, height}, kind, stream);
  });
}
inline cudaError_t cudaMemsetAsync(void* p, int value, std::size_t count, cudaStream_t stream = nullptr) {
  using namespace cuda_stand_in;
  return call("cudaMemsetAsync", [=] {
    CUstream_st* const s = stream_of(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (count == 0) return cudaSuccess;
    const place where = locate(p);
    if (where.kind == memory_kind::pageable || !reaches(where, count)) return cudaErrorInvalidValue;
    s->append([=] {
      if (still_there(where, count))
        std::memset(where.real, value, count);
      else
        fail_device(s->device, cudaErrorIllegalAddress, "cudaMemsetAsync runs after its memory was freed");
    });
    return cudaSuccess;
  });
}
namespace cuda_stand_in {

// What was to be given to a host function, and will not be, since the device has failed: nobody can know when
// the driver lets go of it, and it stays until the process ends. Kept within reach, so that it is no leak.
inline void never_called(void* data) {
  struct kept {
    void* data;
    kept* next;
  };
  static std::atomic<kept*> all{nullptr};
  auto* const one = static_cast<kept*>(std::malloc(sizeof(kept)));
  if (one == nullptr) std::abort();
  new (one) kept{data, all.load()};
  while (!all.compare_exchange_weak(one->next, one)) {
  }
}

} // namespace cuda_stand_in

inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  using namespace cuda_stand_in;
  return call("cudaLaunchHostFunc", [=] {
    CUstream_st* const s = stream_of(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    static auto* const one_at_a_time = new std::mutex;
    const auto call_it = [=, serial = settings().serial_host_functions] {
      std::unique_lock lock(*one_at_a_time, std::defer_lock);
      if (serial) lock.lock();
      if (device_of(s->device).failed_with.load(std::memory_order_relaxed) != 0) return never_called(data);
      doing = activity::host_function;
      try {
        function(data);
      } catch (...) {
        fail_device(s->device, cudaErrorLaunchFailure, "an exception leaves a host function of a stream");
      }
      doing = activity::library;
    };
    s->append(call_it, true);
    return cudaSuccess;
  });
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  using namespace cuda_stand_in;
  return call("cudaFuncGetAttributes", [=] {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
  });
}
