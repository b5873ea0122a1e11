// SPDX-License-Identifier: Apache-2.0
//
// The communicator that moves data between GPUs with NVIDIA's NCCL, 2.18 or newer: component nccl. Host
// threads reach one another over a communicator that is there already, of MPI processes or of threads with a
// GPU each, or over a function of the user's; only data goes through NCCL.
//   nccl_communicator comm{mpi};                      over an mpi_communicator, on the current device
//   nccl_communicator comm{mpi, theirs};              adopts an ncclComm_t, which its owner destroys after it
//   nccl_communicator comm{nccl_callback{...}};       over a function of one's own
// All of these are collective and take nccl_options at the end.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/backend.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/nccl/callback.hpp>
#include <plateau/nccl/options.hpp>
#include <plateau/nccl/world.hpp>

namespace plateau::inline v0 {

using nccl_communicator = basic_communicator<nccl::world>;
static_assert(communicator<nccl_communicator, cuda_backend>);

} // namespace plateau::inline v0
