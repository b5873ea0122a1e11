// SPDX-License-Identifier: Apache-2.0
//
// The dispatch on the CUDA backend, on the stand-in: ranks that share a device, late operations, and NCCL.
#include "nccl_fixture.hpp"
#include "support/dispatch_checks.hpp"

#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pl = plateau;

namespace {

struct over_nccl {
  template <class F> void run(int ranks, F f) const {
    nccl_ranks::nobody_failed(nccl_ranks::over_threads::run(
        ranks,
        [&](auto& comm) {
          nccl_ranks::backend backend;
          f(comm, backend);
        },
        nccl_ranks::milliseconds(60'000)));
  }
};

} // namespace

TEST_CASE("rows go to their experts and come back, where operations of streams come late") {
  cuda_stand_in::options o;
  o.seed = 3;
  o.delay_microseconds = 50;
  const stand_in::with_settings late(o);
  support::check_dispatches<float>(support::on_threads<pl::cuda_backend, pl::cuda_thread_communicator>{}, 3);
}
TEST_CASE("over NCCL, a device for each rank") {
  const nccl_ranks::eight_devices devices;
  support::check_dispatches<float>(over_nccl{}, 3);
}
