// SPDX-License-Identifier: Apache-2.0
//
// A sharded AdamW on ranks that share a GPU, by the bits of loops on the host.
#include "support/sharded_adamw_case.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

TEST_CASE("the bits of the host's update") {
  const support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator> gpu;
  support::sharded::adamw_case c;
  c.idle_expert = true;
  support::sharded::check_case<plateau::bfloat16>(c, support::sharded::run_case<plateau::bfloat16>(c, gpu));
}
