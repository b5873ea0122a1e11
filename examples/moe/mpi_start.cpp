// SPDX-License-Identifier: Apache-2.0
#if defined(MOE_HAS_MPI)
#include "mpi_start.hpp"

#include <plateau/error.hpp>
#include <plateau/mpi.hpp>

#include <exception>

void moe::join_by_mpi(std::chrono::seconds deadline, const std::function<void(process_communicator&)>& body,
                      const std::function<void(int rank, const std::string& cause)>& failed) {
  plateau::mpi_options options;
  options.deadline = deadline;
  plateau::run_mpi_ranks(
      [&](plateau::mpi_communicator& comm) {
        process_communicator world(&comm);
        try {
          body(world);
        } catch (...) {
          // Said before this process leaves: once one has ended with a failure, a launcher may stop the
          // others.
          const plateau::failure mine = plateau::failure::current();
          comm.abort(mine);
          try {
            comm.cause().value_or(mine).raise();
          } catch (const std::exception& cause) {
            failed(comm.rank(), cause.what());
          }
          throw;
        }
      },
      options);
}
#endif
