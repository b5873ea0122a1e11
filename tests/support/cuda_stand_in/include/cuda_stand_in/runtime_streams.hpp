// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: streams.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/stream.hpp>

#include <driver_types.h>

#include <memory>
#include <mutex>

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  using namespace cuda_stand_in;
  return call("cudaStreamCreateWithFlags", [=] {
    if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    handles& all = given_out();
    std::uint64_t n = 0;
    {
      std::lock_guard lock(all.default_mutex);
      n = ++all.streams_made;
    }
    *stream = all.streams.add(std::make_unique<CUstream_st>(current_device, flags, n));
    return cudaSuccess;
  });
}
// What is in flight runs to its end; nobody waits for it.
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  using namespace cuda_stand_in;
  return closing_call("cudaStreamDestroy", [=] {
    if (!given_out().streams.remove(stream)) {
      report("cudaStreamDestroy of a stream that does not exist, or was destroyed");
      return cudaErrorInvalidResourceHandle;
    }
    stream->close();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  using namespace cuda_stand_in;
  return call("cudaStreamSynchronize", [=] {
    CUstream_st* const s = stream_of(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    s->finish();
    return device_error(s->device);
  });
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  using namespace cuda_stand_in;
  return call("cudaStreamQuery", [=] {
    CUstream_st* const s = stream_of(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (!s->idle()) return cudaErrorNotReady;
    return device_error(s->device);
  });
}
// The record that is the newest now; one that never was counts as done.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0) {
  using namespace cuda_stand_in;
  return call("cudaStreamWaitEvent", [=] {
    CUstream_st* const s = stream_of(stream);
    CUevent_st* const e = event_of(event);
    if (s == nullptr || e == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorInvalidValue;
    completion* const record = e->newest();
    if (record == nullptr) return cudaSuccess;
    s->append(
        [record] {
          record->wait();
          record->drop();
        },
        true);
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  using namespace cuda_stand_in;
  return call("cudaStreamGetDevice", [=] {
    CUstream_st* const s = stream_of(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    *device = s->device;
    return cudaSuccess;
  });
}
