// SPDX-License-Identifier: Apache-2.0
//
// Joins the processes of an MPI job, where the program is built with MPI: all that it has of MPI is in
// mpi_start.cpp.
#pragma once

#include "program.hpp"

#include <chrono>
#include <functional>
#include <string>

namespace moe {

#if defined(MOE_HAS_MPI)
// As join_processes has it.
void join_by_mpi(std::chrono::seconds deadline, const std::function<void(process_communicator&)>& body,
                 const std::function<void(int rank, const std::string& cause)>& failed);
#endif

// Empty in a program without MPI.
inline join_processes mpi_joiner() {
#if defined(MOE_HAS_MPI)
  return join_by_mpi;
#else
  return {};
#endif
}

} // namespace moe
