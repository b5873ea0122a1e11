// SPDX-License-Identifier: Apache-2.0
//
// What can be chosen when an nccl_communicator is made. Its deadline is that of its host channel.
#pragma once

#include <plateau/config.hpp>

#include <chrono>

namespace plateau::inline v0 {

struct nccl_options {
  // Compare the lists of every exchange between all ranks before it is issued, so that sizes that differ are
  // named at once on all ranks. Off, they hang inside NCCL, which does not look, until the deadline; or, when
  // more is sent than is expected, the rest is taken for the next message. It is off from the start because
  // it makes each exchange wait for the host threads of all ranks, so that none can run ahead of its GPU, and
  // because the same program shows the same mistake for nothing on threads, on MPI and in the dry run. All
  // ranks must choose alike.
  bool check_sizes = false;

  // Whether an adopted ncclComm_t may be aborted when the group fails. It is useless afterwards, and its
  // owner must neither use nor destroy it. Without this nothing ends the exchanges that are in flight in it,
  // and a wait for their stream lasts until its owner aborts it.
  bool abort_adopted = false;

  // How long a wait for a rank that has left goes on: what it had sent before may still be on its way.
  std::chrono::milliseconds left_grace{1000};

  bool operator==(const nccl_options&) const = default;
};

} // namespace plateau::inline v0
