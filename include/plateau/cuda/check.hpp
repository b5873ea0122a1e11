// SPDX-License-Identifier: Apache-2.0
//
// Every call of the CUDA runtime goes through `check`: what fails becomes a backend_error with the call,
// CUDA's name and words for the error, and the line. The runtime keeps the last error of each thread; it is
// cleared here, so that a failure that was handled is not reported once more by a later call.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <cuda_runtime.h>

#include <string>

namespace plateau::inline v0::cudart {

// "cudaErrorMemoryAllocation, out of memory"
inline std::string error_text(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status);
}

// Those after which the device is of no use to this process any more. Kernels and copies run later than they
// are issued, so that some later call reports what they did.
inline bool is_fatal(cudaError_t status) {
  return status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure ||
         status == cudaErrorMisalignedAddress || status == cudaErrorIllegalInstruction ||
         status == cudaErrorInvalidAddressSpace || status == cudaErrorInvalidPc ||
         status == cudaErrorHardwareStackError || status == cudaErrorAssert ||
         status == cudaErrorLaunchTimeout || status == cudaErrorECCUncorrectable;
}

// Those which say that the program holds no code that this GPU can run.
inline bool is_wrong_architecture(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion ||
         status == cudaErrorInvalidDeviceFunction;
}

// "compute capability 9.0", the architecture of the current device, where it says so.
inline std::string compute_capability() {
  int device = 0, first = 0, second = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&first, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&second, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess)
    return "compute capability " + std::to_string(first) + "." + std::to_string(second);
  static_cast<void>(cudaGetLastError());
  return "the architecture of this GPU";
}

[[noreturn]] inline void fail(cudaError_t status, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());
  std::string text =
      std::string("plateau: ") + call + ": " + error_text(status) + source_line{file, line}.text();
  if (is_fatal(status))
    text +=
        "; this is what a kernel or copy that was issued earlier did: run under compute-sanitizer, or with "
        "CUDA_LAUNCH_BLOCKING=1, to see which";
  else if (is_wrong_architecture(status))
    text += "; this program has no code for " + compute_capability() +
            ": add it to CMAKE_CUDA_ARCHITECTURES, or to nvcc's -gencode";
  throw backend_error(text);
}

// Throws backend_error unless the call succeeded. `file` and `line` are those of the operation's caller where
// there is one.
inline void check(cudaError_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status != cudaSuccess) fail(status, call, file, line);
}

// For destructors, which have nobody to tell: what fails there is not left for a later call to report.
inline void forgive(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

} // namespace plateau::inline v0::cudart
