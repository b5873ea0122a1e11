// SPDX-License-Identifier: Apache-2.0
//
// Copies: what they check when they are asked for, when they wait for the host's sake, and what they find
// when they run.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/stream.hpp>

#include <cstdlib>
#include <cstring>

namespace cuda_stand_in {

// How often ordinary memory was on one side of a copy: such a copy holds the host up.
inline std::atomic<std::uint64_t>& pageable_copies() {
  static auto* const count = new std::atomic<std::uint64_t>{0};
  return *count;
}

struct rectangle {
  std::size_t pitch, width, height;
  std::size_t reach() const { return width == 0 || height == 0 ? 0 : pitch * (height - 1) + width; }
};

// Whether `place` still is what it was when the copy was asked for.
inline bool still_there(const place& where, std::size_t bytes) {
  if (where.kind == memory_kind::pageable) return true;
  const place now = locate(where.real);
  return now.kind == where.kind && reaches(now, bytes);
}
inline void copy_rectangle(char* to, std::size_t to_pitch, const char* from, std::size_t from_pitch,
                           std::size_t width, std::size_t height) {
  for (std::size_t r = 0; r < height; ++r) std::memmove(to + r * to_pitch, from + r * from_pitch, width);
}

inline cudaError_t copy(void* dst, rectangle to, const void* src, rectangle from, cudaMemcpyKind kind,
                        cudaStream_t handle) {
  CUstream_st* const stream = stream_of(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (to.reach() == 0) return cudaSuccess;
  const place a = locate(dst), b = locate(src);
  if (dst == nullptr || src == nullptr || !reaches(a, to.reach()) || !reaches(b, from.reach()))
    return cudaErrorInvalidValue;
  const bool to_device = a.kind == memory_kind::device, from_device = b.kind == memory_kind::device;
  if (kind != cudaMemcpyDefault &&
      (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return cudaErrorInvalidValue;
  if (a.real < b.real + from.reach() && b.real < a.real + to.reach() && to.height == 1)
    report("a copy of " + std::to_string(to.width) + " bytes overlaps itself");

  const bool pageable = a.kind == memory_kind::pageable || b.kind == memory_kind::pageable;
  if (pageable) pageable_copies().fetch_add(1, std::memory_order_relaxed);
  // Ordinary memory is read before the call returns: what goes to a device waits in a copy.
  char* staged = nullptr;
  if (b.kind == memory_kind::pageable && to_device) {
    staged = static_cast<char*>(std::malloc(from.width * from.height));
    if (staged == nullptr) return cudaErrorMemoryAllocation;
    copy_rectangle(staged, from.width, b.real, from.pitch, from.width, from.height);
  }
  const int device = stream->device;
  stream->append([=] {
    if (!still_there(a, to.reach()) || !still_there(b, from.reach())) {
      fail_device(device, cudaErrorIllegalAddress, "a copy runs after its memory was freed");
    } else if (staged != nullptr) {
      copy_rectangle(a.real, to.pitch, staged, from.width, to.width, to.height);
    } else {
      copy_rectangle(a.real, to.pitch, b.real, from.pitch, to.width, to.height);
    }
    std::free(staged);
  });
  // The host waits where ordinary memory is written, and for copies from host memory to host memory.
  if (a.kind == memory_kind::pageable || (!to_device && !from_device)) stream->finish();
  return device_error(device);
}

} // namespace cuda_stand_in
