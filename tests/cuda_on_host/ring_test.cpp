// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy and entropy over a split vocabulary, and attention over a split sequence, on the CUDA
// backend, on the stand-in: ranks that share a device, late operations, and NCCL.
#include "nccl_fixture.hpp"
#include "support/attention_checks.hpp"
#include "support/ring_checks.hpp"

#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

namespace pl = plateau;

namespace {

struct over_nccl {
  using backend = nccl_ranks::backend;
  using communicator = pl::nccl_communicator;
  static constexpr bool has_data = true;

  template <class F> void run(int ranks, F f) const {
    nccl_ranks::nobody_failed(nccl_ranks::over_threads::run(
        ranks,
        [&](communicator& comm) {
          backend of_rank;
          f(comm, of_rank);
        },
        nccl_ranks::milliseconds(60'000)));
  }
};

} // namespace

TEST_CASE("losses and gradients agree with float64, where operations of streams come late") {
  cuda_stand_in::options o;
  o.seed = 3;
  o.delay_microseconds = 20;
  const stand_in::with_settings late(o);
  const support::on_threads<pl::cuda_backend, pl::cuda_thread_communicator> ranks;
  support::check_rings<float>(ranks, 3, 3);
  support::check_entropies<float>(ranks, 3);
  support::check_attentions<float>(ranks, 3, 3);
}
TEST_CASE("over NCCL, a device for each rank") {
  const nccl_ranks::eight_devices devices;
  support::check_rings<float>(over_nccl{}, 1, 2);
  support::check_attentions<float>(over_nccl{}, 1, 2);
}
