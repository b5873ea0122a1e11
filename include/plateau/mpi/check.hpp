// SPDX-License-Identifier: Apache-2.0
//
// Every return code of MPI passes here. The communicators that Plateau makes return errors instead of ending
// the process, so that a rank can say what it was doing, and tell the others.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <mpi.h>

#include <string>

namespace plateau::inline v0::mpi {

// Throws backend_error with the call, its place in the source, and what MPI says of the code.
inline void check(int code, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw backend_error(std::string("plateau: ") + call + " at " + file + ":" + std::to_string(line) +
                      " failed: " + std::string(text, static_cast<std::size_t>(length)) + " (code " +
                      std::to_string(code) + ")");
}

} // namespace plateau::inline v0::mpi
