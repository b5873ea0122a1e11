// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: errors, their names and texts. Names are the real ones, texts are not.
#pragma once

#include <cuda_stand_in/calls.hpp>

#include <driver_types.h>

#include <utility>

inline cudaError_t cudaGetLastError() { return std::exchange(cuda_stand_in::last_error, cudaSuccess); }
inline cudaError_t cudaPeekAtLastError() { return cuda_stand_in::last_error; }

namespace cuda_stand_in {
struct error_entry {
  cudaError_t code;
  const char* name;
  const char* text;
};
inline constexpr error_entry error_entries[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid launch configuration"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch"},
    {cudaErrorInvalidHostPointer, "cudaErrorInvalidHostPointer", "invalid host pointer"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid direction of a copy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "the driver is older than the runtime"},
    {cudaErrorCallRequiresNewerDriver, "cudaErrorCallRequiresNewerDriver", "the call needs a newer driver"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "all devices are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "there is no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device number"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel was compiled for this device"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion", "the PTX is newer than the driver"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready yet"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal address was touched"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "a launch needs too many resources"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "a kernel took too long"},
    {cudaErrorAssert, "cudaErrorAssert", "an assertion failed on the device"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified failure of a launch"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch", "driver and system do not fit"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary", "the driver is a stub"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable memory error"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "illegal instruction"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace", "invalid address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
} // namespace cuda_stand_in

inline const char* cudaGetErrorName(cudaError_t error) {
  for (const cuda_stand_in::error_entry& e : cuda_stand_in::error_entries)
    if (e.code == error) return e.name;
  return "unrecognized error code";
}
inline const char* cudaGetErrorString(cudaError_t error) {
  for (const cuda_stand_in::error_entry& e : cuda_stand_in::error_entries)
    if (e.code == error) return e.text;
  return "unrecognized error code";
}
