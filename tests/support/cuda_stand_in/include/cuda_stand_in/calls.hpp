// SPDX-License-Identifier: Apache-2.0
//
// What every call of the runtime begins and ends with: it is counted, may be told to fail, is refused in host
// functions and without a usable driver or device, gives back an error of the device that stays, and leaves
// its error for cudaGetLastError.
#pragma once

#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/stream.hpp>

#include <driver_types.h>

#include <string>

namespace cuda_stand_in {

inline constinit thread_local cudaError_t last_error = cudaSuccess;
inline constinit thread_local int current_device = 0;
// Where ranks are threads that play nodes with different drivers; 0: that of the settings. Only to be asked
// for.
inline constinit thread_local int driver_version_here = 0;

inline cudaError_t keep(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}
inline cudaError_t device_error(int device) {
  return static_cast<cudaError_t>(device_of(device).failed_with.load(std::memory_order_relaxed));
}

// Whether there is something to call at all.
inline cudaError_t usable() {
  const options now = settings();
  if (now.driver_version < now.runtime_version) return cudaErrorInsufficientDriver;
  if (now.devices == 0) return cudaErrorNoDevice;
  return cudaSuccess;
}
// Host functions of a stream must call nothing of CUDA, nor of what stands on it.
inline bool forbidden(const char* name) {
  if (doing != activity::host_function) return false;
  report(std::string(name) + " is called in a host function of a stream");
  return true;
}

template <class F> cudaError_t call(const char* name, F f) {
  if (forbidden(name)) return keep(cudaErrorNotPermitted);
  if (const int code = enter(name); code != 0) return keep(static_cast<cudaError_t>(code));
  if (const cudaError_t e = usable(); e != cudaSuccess) return keep(e);
  if (const cudaError_t e = device_error(current_device); e != cudaSuccess) return keep(e);
  return keep(f());
}
// Of a function that gives something back, which it does whatever state the device is in.
template <class F> cudaError_t closing_call(const char* name, F f) {
  if (forbidden(name)) return keep(cudaErrorNotPermitted);
  if (const int code = enter(name); code != 0) return keep(static_cast<cudaError_t>(code));
  const cudaError_t e = f();
  if (const cudaError_t broken = device_error(current_device); broken != cudaSuccess) return keep(broken);
  return keep(e);
}

// The stream of a handle; null for one that does not exist, or no more. 0, 1 and 2 name default streams.
inline CUstream_st* stream_of(cudaStream_t handle) {
  handles& all = given_out();
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) {
    if (all.streams.has(handle)) return handle;
    report("a stream is used that does not exist, or was destroyed");
    return nullptr;
  }
  std::lock_guard lock(all.default_mutex);
  CUstream_st*& one = all.default_streams[current_device];
  if (one == nullptr) one = new CUstream_st(current_device, cudaStreamDefault, 0);
  return one;
}
inline CUevent_st* event_of(cudaEvent_t handle) {
  if (handle != nullptr && given_out().events.has(handle)) return handle;
  report("an event is used that does not exist, or was destroyed");
  return nullptr;
}

} // namespace cuda_stand_in
