// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: events.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/stream.hpp>

#include <driver_types.h>

#include <chrono>
#include <memory>

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  using namespace cuda_stand_in;
  return call("cudaEventCreateWithFlags", [=] {
    if (event == nullptr || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
      return cudaErrorInvalidValue;
    *event = given_out().events.add(std::make_unique<CUevent_st>(current_device, flags));
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  using namespace cuda_stand_in;
  return closing_call("cudaEventDestroy", [=] {
    if (!given_out().events.remove(event)) {
      report("cudaEventDestroy of an event that does not exist, or was destroyed");
      return cudaErrorInvalidResourceHandle;
    }
    event->replace(nullptr);
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
  using namespace cuda_stand_in;
  return call("cudaEventRecord", [=] {
    CUstream_st* const s = stream_of(stream);
    CUevent_st* const e = event_of(event);
    if (s == nullptr || e == nullptr || s->device != e->device) return cudaErrorInvalidResourceHandle;
    completion* const record = completion::make(2);
    e->replace(record);
    s->append_record(record);
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  using namespace cuda_stand_in;
  return call("cudaEventSynchronize", [=] {
    CUevent_st* const e = event_of(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    if (completion* const record = e->newest(); record != nullptr) {
      record->wait();
      record->drop();
    }
    return device_error(e->device);
  });
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  using namespace cuda_stand_in;
  return call("cudaEventQuery", [=] {
    CUevent_st* const e = event_of(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    completion* const record = e->newest();
    const bool done = record == nullptr || record->done();
    if (record != nullptr) record->drop();
    return done ? device_error(e->device) : cudaErrorNotReady;
  });
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  using namespace cuda_stand_in;
  return call("cudaEventElapsedTime", [=] {
    std::chrono::steady_clock::time_point at[2];
    int i = 0;
    for (cudaEvent_t handle : {start, end}) {
      CUevent_st* const e = event_of(handle);
      if (e == nullptr || (e->flags & cudaEventDisableTiming) != 0) return cudaErrorInvalidResourceHandle;
      completion* const record = e->newest();
      if (record == nullptr) return cudaErrorInvalidResourceHandle;
      const bool done = record->done();
      at[i++] = record->at();
      record->drop();
      if (!done) return cudaErrorNotReady;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(at[1] - at[0]).count();
    return cudaSuccess;
  });
}
