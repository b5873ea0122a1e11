// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks that are processes: mpi_communicator comm{MPI_COMM_WORLD}. Its streams are those
// of the host backend. Making and destroying one is collective: the destructor waits up to the grace for the
// other ranks, and where the group has failed and a rank is gone, it ends the job.
#pragma once

#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/mpi/options.hpp>
#include <plateau/mpi/world.hpp>

namespace plateau::inline v0 {

using mpi_communicator = basic_communicator<mpi::world>;
static_assert(communicator<mpi_communicator, host_backend>);

} // namespace plateau::inline v0
