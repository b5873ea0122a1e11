// SPDX-License-Identifier: Apache-2.0
//
// Attention over a split sequence on a GPU that several ranks share, against float64.
#include "support/attention_checks.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

TEST_CASE("outputs and gradients agree with float64") {
  const support::on_threads<plateau::cuda_backend, plateau::cuda_thread_communicator> gpu;
  support::check_attentions<float>(gpu, 1, 4);
  support::check_attentions<plateau::bfloat16>(gpu, 1, 3);
}
