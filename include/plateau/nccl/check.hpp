// SPDX-License-Identifier: Apache-2.0
//
// Every call of NCCL goes through `check`: what fails becomes a backend_error with the call, NCCL's words for
// the code, what NCCL has said last, and the line. A call that goes on in the background is no failure.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <nccl.h>

#include <string>

namespace plateau::inline v0::nccl {

// "2.28.9" of 22809, "2.8.4" of 2804: NCCL has numbered its versions in two ways.
inline std::string version_text(int code) {
  const int base = code < 10'000 ? 1000 : 10'000;
  return std::to_string(code / base) + "." + std::to_string(code % base / 100) + "." +
         std::to_string(code % 100);
}

// "ncclSend: invalid argument (NCCL says: ...) at world.hpp:10". `comm` may be null.
inline std::string error_text(ncclResult_t status, const char* call, ncclComm_t comm, source_line at) {
  std::string text = std::string(call) + ": " + ncclGetErrorString(status);
  const char* last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += " (NCCL says: " + std::string(last) + ")";
  return text + at.text();
}

inline bool is_failure(ncclResult_t status) { return status != ncclSuccess && status != ncclInProgress; }

// Throws backend_error when the call has failed.
inline void check(ncclResult_t status, const char* call, ncclComm_t comm = nullptr,
                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (is_failure(status))
    throw backend_error("plateau: " + error_text(status, call, comm, source_line{file, line}));
}

} // namespace plateau::inline v0::nccl
