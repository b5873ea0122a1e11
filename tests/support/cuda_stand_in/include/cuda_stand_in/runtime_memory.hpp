// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: device and pinned memory.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/fault.hpp>
#include <cuda_stand_in/memory.hpp>

#include <driver_types.h>

#include <algorithm>
#include <string>

inline cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  using namespace cuda_stand_in;
  return call("cudaMalloc", [=] {
    if (p == nullptr) return cudaErrorInvalidValue;
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    watch_faults();
    arena& a = memory().device;
    const std::size_t limit = settings().memory_bytes, used = a.in_use(current_device);
    if (bytes > limit || used > limit - bytes) return cudaErrorMemoryAllocation;
    *p = a.allocate(bytes, current_device);
    return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}
// Does not wait for the device, though the real one mostly does: who relies on that is found out.
inline cudaError_t cudaFree(void* p) {
  using namespace cuda_stand_in;
  return closing_call("cudaFree", [=] {
    if (p == nullptr) return cudaSuccess;
    allocation gone;
    if (memory().device.shows(p) && memory().device.release(p, gone)) return cudaSuccess;
    report(std::string("cudaFree of ") +
           (memory().device.shows(p)   ? "an address that no allocation begins at, or of one that was freed"
            : memory().pinned.holds(p) ? "pinned memory, which cudaFreeHost takes"
                                       : "memory that is not the device's"));
    return cudaErrorInvalidValue;
  });
}
inline cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  using namespace cuda_stand_in;
  return call("cudaMallocHost", [=] {
    if (p == nullptr) return cudaErrorInvalidValue;
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > arena_bytes / 4) return cudaErrorMemoryAllocation;
    watch_faults();
    *p = memory().pinned.allocate(bytes, current_device);
    return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}
inline cudaError_t cudaFreeHost(void* p) {
  using namespace cuda_stand_in;
  return closing_call("cudaFreeHost", [=] {
    if (p == nullptr) return cudaSuccess;
    allocation gone;
    if (memory().pinned.holds(p) && memory().pinned.release(p, gone)) return cudaSuccess;
    report(std::string("cudaFreeHost of ") +
           (memory().pinned.holds(p)   ? "an address that no allocation begins at, or of one that was freed"
            : memory().device.shows(p) ? "device memory, which cudaFree takes"
                                       : "memory that is not pinned"));
    return cudaErrorInvalidValue;
  });
}
inline cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  using namespace cuda_stand_in;
  return call("cudaMemGetInfo", [=] {
    *total = settings().memory_bytes;
    *free_bytes = *total - std::min(*total, memory().device.in_use(current_device));
    return cudaSuccess;
  });
}
