// SPDX-License-Identifier: Apache-2.0
//
// Twenty steps on a GPU against the host's: the first loss is of the same computation from the same weights,
// and later ones stay as close as roundings of the weights keep the host's own
// (tests/moe/training_moves.hpp).
#include "moe/training_moves.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pl = plateau;

using on_gpu = support::on_threads<pl::cuda_backend, pl::cuda_thread_communicator>;

TEST_CASE("fp32: losses of the GPU and of the host, on 4 ranks and on 1") {
  for (const moe::rank_grid grid : {moe::rank_grid{4, 2}, {1, 1}}) {
    CAPTURE(grid.ranks);
    const auto c = test::rounding_case(grid);
    const moe::corpus text = test::rounding_text(c.config.vocabulary);
    const moe::token_sampler sampler(text, c.settings.context, 1);
    const auto host = test::losses_of<float>(c, sampler, 20);
    double moved = 0, moved_first = 0;
    for (const std::uint64_t move : {1, 2, 3, 4}) {
      const auto other = test::losses_of<float>(c, sampler, 20, move);
      moved = std::max(moved, test::distance(host, other, 1));
      moved_first = std::max(moved_first, std::fabs(host.front() - other.front()));
    }
    const auto gpu = test::losses_of<float>(c, sampler, 20, 0, on_gpu{});
    REQUIRE(gpu.size() == host.size());
    const double first = std::fabs(gpu.front() - host.front()), later = test::distance(host, gpu, 1);
    MESSAGE("ranks: ", grid.ranks, ", first step apart: ", first, " (moved weights: ", moved_first,
            "), later: ", later, " (moved weights: ", moved, ")");
    // A unit of fp32 at the loss covers weights whose moves cancel.
    CHECK(first <= 2 * moved_first + std::ldexp(1.0, std::ilogb(host.front()) - 23));
    CHECK(later <= 2 * moved);
    CHECK(gpu == test::losses_of<float>(c, sampler, 20, 0, on_gpu{})); // and again, to the bit
  }
}

TEST_CASE("bf16: a run on the GPU learns as the host's does") {
  const auto c = test::rounding_case({4, 2});
  const moe::corpus text = test::rounding_text(c.config.vocabulary);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto host = test::losses_of<pl::bfloat16>(c, sampler, 20);
  const auto gpu = test::losses_of<pl::bfloat16>(c, sampler, 20, 0, on_gpu{});
  REQUIRE(gpu.size() == host.size());
  // One rounding to bf16 moves a value by at most 2^-9 of itself; the loss is a mean over many of them.
  CHECK(std::fabs(gpu.front() - host.front()) <= 0x1p-9 * host.front());
  const double learned = host.front() - host.back();
  CHECK(learned > 0);
  CHECK(std::fabs((gpu.front() - gpu.back()) - learned) <= 0.05 * learned);
}
