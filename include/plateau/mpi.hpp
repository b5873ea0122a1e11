// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes: mpi_communicator, mpi_session, run_mpi_ranks. Needs MPI 3.1 or newer, initialised
// with MPI_THREAD_MULTIPLE (component plateau::mpi).
#pragma once

#include <plateau/mpi/communicator.hpp>
#include <plateau/mpi/options.hpp>
#include <plateau/mpi/run.hpp>
#include <plateau/mpi/session.hpp>
