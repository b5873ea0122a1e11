// SPDX-License-Identifier: Apache-2.0
//
// A sharded AdamW on the CUDA backend, on the stand-in, where operations of streams come late.
#include "stand_in_tools.hpp"
#include "support/sharded_adamw_case.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

namespace pl = plateau;
using namespace support::sharded;

TEST_CASE("the bits of the host's update, where operations of streams come late") {
  stand_in::cs::options o;
  o.seed = 5;
  o.delay_microseconds = 20;
  const stand_in::with_settings late(o);
  const support::on_threads<pl::cuda_backend, pl::cuda_thread_communicator> ranks;
  adamw_case c;
  c.stopped = 1;
  check_case<pl::bfloat16>(c, run_case<pl::bfloat16>(c, ranks));
}
