// SPDX-License-Identifier: Apache-2.0
//
// Parked tensors on a GPU: random programs, and a sequence of layers by its bits, with copies that take long
// enough to be overtaken by what does not wait for them.
#include "support/offload_checks.hpp"

#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

TEST_CASE("parked tensors come back, and layers have their bits") {
  support::check_offload_programs<plateau::cuda_backend>(20);
  support::check_offload_sequence<plateau::cuda_backend, float>(20000);
  support::check_offload_sequence<plateau::cuda_backend, plateau::bfloat16>(20000);
}
