// SPDX-License-Identifier: Apache-2.0
//
// The dispatch over NCCL on the GPUs that are here, a rank on each.
#include "support/dispatch_checks.hpp"

#include <plateau/cuda.hpp>
#include <plateau/nccl.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <cuda_runtime.h>

namespace pl = plateau;

namespace {

// Rank r on GPU r.
struct over_nccl {
  template <class F> void run(int ranks, F f) const {
    pl::run_ranks<pl::thread_communicator>(ranks, [&](pl::thread_communicator& threads) {
      const std::string owner = "rank " + std::to_string(threads.rank());
      pl::cuda_backend backend(owner.c_str(), threads.rank());
      pl::nccl_communicator comm{threads};
      f(comm, backend);
    });
  }
};

} // namespace

TEST_CASE("rows go to their experts and come back") {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  support::check_dispatches<float>(over_nccl{}, std::min(gpus, 4));
}
