// SPDX-License-Identifier: Apache-2.0
//
// Runs a function on ranks that are the processes of an MPI job: what run_ranks is for threads. Every process
// calls it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/mpi/communicator.hpp>
#include <plateau/mpi/session.hpp>

#include <optional>
#include <utility>

namespace plateau::inline v0 {

namespace mpi {
struct rank_end {
  std::optional<failure> mine;  // what this rank's function left with
  std::optional<failure> cause; // of the group's failure
};
// Runs f(comm) and leaves the group. Does not throw what f throws.
template <class F> rank_end run_rank(mpi_communicator& comm, F& f) {
  rank_end end;
  try {
    f(comm);
  } catch (...) {
    end.mine = failure::current();
    comm.abort(*end.mine);
  }
  comm.leave();
  static_cast<void>(comm.world()->farewell());
  end.cause = comm.cause();
  return end;
}
} // namespace mpi

// Joins MPI_COMM_WORLD, initialising MPI if that has not been done, and runs f(mpi_communicator&). Returns
// when all ranks have ended; throws the first cause as collective_error, on all ranks that can still be
// reached, when any of them failed. A program that calls it more than once holds an mpi_session meanwhile.
template <class F> void run_mpi_ranks(F&& f, const mpi_options& options = {}) {
  const mpi_session session;
  mpi::rank_end end;
  {
    mpi_communicator comm{MPI_COMM_WORLD, options};
    end = mpi::run_rank(comm, f);
  }
  if (end.cause) end.cause->raise();
}

} // namespace plateau::inline v0
