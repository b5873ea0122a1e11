// SPDX-License-Identifier: Apache-2.0
//
// Parked tensors on the CUDA backend, on the stand-in, where operations of streams come late.
#include "stand_in_tools.hpp"
#include "support/offload_checks.hpp"

#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

TEST_CASE("parked tensors come back, and layers have their bits, where operations of streams come late") {
  cuda_stand_in::options o;
  o.seed = 5;
  o.delay_microseconds = 30;
  const stand_in::with_settings late(o);
  support::check_offload_programs<plateau::cuda_backend>(12);
  support::check_offload_sequence<plateau::cuda_backend, float>(6);
}
