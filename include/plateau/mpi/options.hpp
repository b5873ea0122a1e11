// SPDX-License-Identifier: Apache-2.0
//
// What may be chosen about an mpi_communicator.
#pragma once

#include <plateau/config.hpp>

#include <chrono>
#include <cstddef>

namespace plateau::inline v0 {

struct mpi_options {
  // A wait fails when for this long no rank of the group has completed an operation.
  std::chrono::milliseconds deadline{60'000};
  // How long the end of a group that has failed waits for each rank's goodbye; then the job is aborted.
  std::chrono::milliseconds grace{10'000};
  // Bytes of a single MPI message; larger ones are cut. MPI counts with int.
  std::size_t largest_message = std::size_t{1} << 30;
};

} // namespace plateau::inline v0
