// SPDX-License-Identifier: Apache-2.0
//
// The dispatch on a GPU that several ranks share, forward and backward, by bits.
#include "support/dispatch_checks.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

TEST_CASE("rows go to their experts and come back") {
  const support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator> gpu;
  support::check_dispatches<float>(gpu, 4);
  support::check_dispatches<plateau::bfloat16>(gpu, 2);
}
