// SPDX-License-Identifier: Apache-2.0
//
// A streamed and a sharded AdamW over NCCL on the GPUs that are here, a rank on each, by the bits of loops on
// the host.
#include "support/adamw_checks.hpp"
#include "support/sharded_adamw_case.hpp"

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
int ranks_here() {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  return std::min(gpus, 4);
}

} // namespace

TEST_CASE("the bits of the host's update") {
  support::check_adamw<float, pl::bfloat16, pl::device_space, pl::host_space>(over_nccl{}, ranks_here(),
                                                                              pl::update_on::device);
}

TEST_CASE("the bits of the host's update, with state in shards") {
  support::sharded::adamw_case c;
  c.ranks = ranks_here();
  c.group = c.ranks % 2 == 0 ? 2 : 1;
  c.idle_expert = true;
  support::sharded::check_case<pl::bfloat16>(c, support::sharded::run_case<pl::bfloat16>(c, over_nccl{}));
}
