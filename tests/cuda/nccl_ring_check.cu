// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy and entropy over a split vocabulary, and attention over a split sequence, over NCCL on the
// GPUs that are here, a rank on each.
#include "support/attention_checks.hpp"
#include "support/ring_checks.hpp"

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
  using backend = pl::cuda_backend;
  using communicator = pl::nccl_communicator;
  static constexpr bool has_data = true;

  template <class F> void run(int ranks, F f) const {
    pl::run_ranks<pl::thread_communicator>(ranks, [&](pl::thread_communicator& threads) {
      const std::string owner = "rank " + std::to_string(threads.rank());
      pl::cuda_backend of_rank(owner.c_str(), threads.rank());
      pl::nccl_communicator comm{threads};
      f(comm, of_rank);
    });
  }
};

} // namespace

TEST_CASE("losses, outputs and gradients agree with float64") {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  support::check_rings<float>(over_nccl{}, 1, std::min(gpus, 4));
  support::check_entropies<float>(over_nccl{}, std::min(gpus, 4));
  support::check_attentions<float>(over_nccl{}, 1, std::min(gpus, 4));
}
