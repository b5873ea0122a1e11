// SPDX-License-Identifier: Apache-2.0
//
// What can be wrong with a machine before anything runs on its GPU, each with a sentence that says what to
// do: no device, no driver or one that is too old, a device number out of range. (A GPU for which this
// program has no code shows at the first kernel: see check.hpp.)
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/error.hpp>

#include <cuda_runtime.h>

#include <string>

namespace plateau::inline v0::cudart {

// 13000 -> "13.0"
inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

namespace detail {
// Why cudaGetDeviceCount failed, or found nothing.
inline std::string no_device_text(cudaError_t status) {
  int driver = 0, runtime = 0; // 0 where there is none
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorStubLibrary)
    return "the CUDA driver library is a stub that is there to link against: take the toolkit's folder "
           "'stubs' "
           "out of LD_LIBRARY_PATH";
  if (status == cudaErrorInsufficientDriver && driver == 0)
    return "this machine has no CUDA driver: install NVIDIA's, or use host_backend";
  if (status == cudaErrorInsufficientDriver || status == cudaErrorSystemDriverMismatch)
    return "the driver is too old: it is made for CUDA " + version_text(driver) + ", this program for CUDA " +
           version_text(runtime) + ": update the driver, or build with an older toolkit";
  if (status == cudaErrorNoDevice || status == cudaSuccess)
    return "this machine shows no GPU to the program: see nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
           "host_backend";
  return "cudaGetDeviceCount: " + error_text(status) + " (driver for CUDA " + version_text(driver) +
         ", program for CUDA " + version_text(runtime) + ")";
}
} // namespace detail

// Makes `device` the calling thread's current device. Throws backend_error, on a machine without CUDA too.
inline void open_device(const char* owner, int device) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0)
    throw backend_error(error_prefix(owner) + "no CUDA device: " + detail::no_device_text(found));
  if (device < 0 || device >= count)
    throw backend_error(
        error_prefix(owner) + "CUDA device " + std::to_string(device) + " was asked for, but there " +
        (count == 1 ? "is only device 0" : "are only devices 0 to " + std::to_string(count - 1)) +
        " (CUDA_VISIBLE_DEVICES may hide others)");
  check(cudaSetDevice(device), "cudaSetDevice"); // the context is made here: memory and driver may refuse it
}

} // namespace plateau::inline v0::cudart
