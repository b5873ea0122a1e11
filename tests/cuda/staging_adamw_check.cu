// SPDX-License-Identifier: Apache-2.0
//
// A streamed AdamW on a GPU, by the bits of the host: on one rank with a state of a few MB, and on two that
// share the GPU.
#include "support/adamw_checks.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

TEST_CASE("the bits of the host's update") {
  const support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator> gpu;
  support::check_adamws(gpu, 1, 300000);
  support::check_adamws(gpu, 2);
}
