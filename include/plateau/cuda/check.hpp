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

[[noreturn]] inline void fail(cudaError_t status, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());
  std::string text =
      std::string("plateau: ") + call + ": " + error_text(status) + source_line{file, line}.text();
  if (is_fatal(status))
    text +=
        "; this is what a kernel or copy that was issued earlier did: run under compute-sanitizer, or with "
        "CUDA_LAUNCH_BLOCKING=1, to see which";
  throw backend_error(text);
}

// Throws backend_error unless the call succeeded. `file` and `line` are those of the operation's caller where
// there is one.
inline void check(cudaError_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status != cudaSuccess) fail(status, call, file, line);
}

} // namespace plateau::inline v0::cudart
