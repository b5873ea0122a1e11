// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: devices and versions, as the settings have them.
#pragma once

#include <cuda_stand_in/calls.hpp>

#include <driver_types.h>

#include <cstdio>

inline cudaError_t cudaGetDeviceCount(int* count) {
  using namespace cuda_stand_in;
  if (forbidden("cudaGetDeviceCount")) return keep(cudaErrorNotPermitted);
  if (const int code = enter("cudaGetDeviceCount"); code != 0) return keep(static_cast<cudaError_t>(code));
  *count = 0;
  if (const cudaError_t e = usable(); e != cudaSuccess) return keep(e);
  *count = settings().devices;
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  using namespace cuda_stand_in;
  if (const int code = enter("cudaDriverGetVersion"); code != 0) return keep(static_cast<cudaError_t>(code));
  *version = driver_version_here != 0 ? driver_version_here : settings().driver_version;
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  using namespace cuda_stand_in;
  if (const int code = enter("cudaRuntimeGetVersion"); code != 0) return keep(static_cast<cudaError_t>(code));
  *version = settings().runtime_version;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  using namespace cuda_stand_in;
  return call("cudaSetDevice", [=] {
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    current_device = device;
    return device_error(device);
  });
}
inline cudaError_t cudaGetDevice(int* device) {
  using namespace cuda_stand_in;
  return call("cudaGetDevice", [=] {
    *device = current_device;
    return cudaSuccess;
  });
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  using namespace cuda_stand_in;
  return call("cudaDeviceGetAttribute", [=] {
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 49152;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    default:
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  using namespace cuda_stand_in;
  return call("cudaGetDeviceProperties", [=] {
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    *prop = {};
    std::snprintf(prop->name, sizeof prop->name, "stand-in device %d", device);
    prop->uuid.bytes[15] = static_cast<char>(device);
    prop->totalGlobalMem = settings().memory_bytes;
    prop->sharedMemPerBlock = 49152;
    prop->regsPerBlock = 65536;
    prop->warpSize = 32;
    prop->memPitch = 2147483647;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 2147483647;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = 9;
    prop->minor = 0;
    prop->multiProcessorCount = 4;
    prop->unifiedAddressing = 1;
    prop->l2CacheSize = 1 << 20;
    prop->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
  });
}
