// SPDX-License-Identifier: Apache-2.0
//
// A communicator of one's own between the ranks of a user's: beside the MPI_Comm_free at the end the only
// collective call of MPI that is made, in its non-blocking form.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/mpi/check.hpp>
#include <plateau/mpi/options.hpp>
#include <plateau/mpi/session.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>

namespace plateau::inline v0::mpi {

// Collective over `comm`. Returns a communicator whose errors are returned. Throws config_error when MPI or
// `comm` or the options cannot serve, backend_error when not all ranks come before the deadline.
inline MPI_Comm duplicate(MPI_Comm comm, const mpi_options& options) {
  require_threads();
  if (comm == MPI_COMM_NULL)
    throw config_error(
        "plateau: an mpi_communicator was asked for over MPI_COMM_NULL; give it the communicator "
        "of the ranks that take part, and make none on the others");
  if (options.deadline.count() <= 0 || options.grace.count() < 0)
    throw config_error("plateau: an mpi_communicator with a deadline of " +
                       std::to_string(options.deadline.count()) + " ms and a grace of " +
                       std::to_string(options.grace.count()) +
                       " ms; the first must be positive, the second not negative");
  if (options.largest_message == 0 || options.largest_message > std::size_t(std::numeric_limits<int>::max()))
    throw config_error("plateau: an mpi_communicator with messages of up to " +
                       std::to_string(options.largest_message) + " bytes; MPI counts from 1 to " +
                       std::to_string(std::numeric_limits<int>::max()));
  int between_groups = 0;
  check(MPI_Comm_test_inter(comm, &between_groups), "MPI_Comm_test_inter");
  if (between_groups != 0)
    throw config_error("plateau: an mpi_communicator was asked for over an intercommunicator; merge it first "
                       "(MPI_Intercomm_merge)");
  auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(comm, made.get(), &request), "MPI_Comm_idup");
  const auto until =
      std::chrono::steady_clock::now() + std::min(options.deadline, host::abort_record::longest);
  for (int done = 0; done == 0;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0 && std::chrono::steady_clock::now() > until) {
      static_cast<void>(made.release()); // MPI may still write it
      int rank = -1;
      check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
      throw backend_error(
          "plateau: rank " + std::to_string(rank) +
          ": not all ranks of the communicator came to make an mpi_communicator of it within " +
          std::to_string(options.deadline.count()) + " ms; it is made by all of them together");
    }
    std::this_thread::yield();
  }
  check(MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return *made;
}

} // namespace plateau::inline v0::mpi
