// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy and entropy over a split vocabulary on a GPU that several ranks share, against float64.
#include "support/ring_checks.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

TEST_CASE("losses, outputs and gradients agree with float64") {
  const support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator> gpu;
  support::check_rings<float>(gpu, 1, 4);
  support::check_rings<plateau::bfloat16>(gpu, 1, 3);
  support::check_entropies<plateau::bfloat16>(gpu, 4);
}
