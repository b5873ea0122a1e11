// SPDX-License-Identifier: Apache-2.0
//
// Runs that only group their sums differently stay as close as a rounding of the weights does: other numbers
// of ranks, other tiles of attention, the baseline's products without fused additions. What the CUDA backend
// is held to as well (tests/cuda/training_check.cu).
#include "training_moves.hpp"

#include <plateau/host/cpu_dispatch.hpp>

#include <doctest/doctest.h>

namespace pl = plateau;

namespace {

struct baseline_runner : pl::host::cpu_runner {
  baseline_runner() : cpu_runner{pl::cpu_level::baseline} {}
};
using baseline_backend = pl::basic_host_backend<pl::block_gemm, baseline_runner>;

} // namespace

TEST_CASE("regrouped sums move the losses no further than roundings of the weights") {
  const auto c = test::rounding_case({4, 2});
  const moe::corpus text = test::rounding_text(c.config.vocabulary);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto plain = test::losses_of<float>(c, sampler, 20);
  CHECK(plain.back() < plain.front());
  double moved = 0;
  for (const std::uint64_t move : {1, 2, 3, 4}) {
    const auto other = test::losses_of<float>(c, sampler, 20, move);
    CHECK(other != plain);
    moved = std::max(moved, test::distance(plain, other, 1));
  }
  const auto two = test::losses_of<float>(test::rounding_case({2, 2}), sampler, 20);
  auto tiled_case = c;
  tiled_case.config.attention = {16, 16};
  const auto tiled = test::losses_of<float>(tiled_case, sampler, 20);
  const auto baseline = test::losses_of<float>(c, sampler, 20, 0, support::on_threads<baseline_backend>{});
  MESSAGE("moved: ", moved, ", two ranks: ", test::distance(plain, two, 1),
          ", other tiles: ", test::distance(plain, tiled, 1),
          ", baseline: ", test::distance(plain, baseline, 1));
  CHECK(test::distance(plain, two, 1) <= 2 * moved);
  CHECK(test::distance(plain, tiled, 1) <= 2 * moved);
  CHECK(test::distance(plain, baseline, 1) <= 2 * moved);
}
