// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy and entropy over a split vocabulary, and attention over a split sequence, between processes:
// the bits that ranks as threads have.
#include "support/attention_checks.hpp"
#include "support/ring_checks.hpp"

#include "mpi_rig.hpp"

namespace pl = plateau;

namespace {

using mpi_rig::on_processes;

template <class T> void check_own(const support::ring_case& c) {
  const auto values = support::values_of<T>(c);
  const auto found = support::run_ring_ranks<T>(c, values, on_processes{});
  if (mpi_rig::process() >= c.ranks()) return;
  const auto me = static_cast<std::size_t>(mpi_rig::process());
  const auto expected = support::run_ring_ranks<T>(c, values, support::on_threads<>{});
  REQUIRE(found[me].loss.size() == 1);
  CHECK(same_bits(found[me], expected[me]));
}

template <class T> void check_own(const support::attention_case& c) {
  const auto values = support::values_of<T>(c);
  const auto found = support::run_attention_ranks<T>(c, values, on_processes{});
  if (mpi_rig::process() >= c.ranks()) return;
  const auto me = static_cast<std::size_t>(mpi_rig::process());
  const auto expected = support::run_attention_ranks<T>(c, values, support::on_threads<>{});
  REQUIRE(expected[me].out.size() == found[me].out.size());
  CHECK(same_bits(found[me], expected[me]));
}

} // namespace

TEST_CASE("mpi on up to 4 ranks: losses, outputs and gradients have the bits of ranks as threads") {
  mpi_rig::as_far_as_possible([] {
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const support::ring_case& c : support::ring_cases_for(ranks)) {
        CAPTURE(ranks);
        check_own<float>(c);
        check_own<pl::bfloat16>(c);
      }
  });
}
TEST_CASE("mpi on up to 4 ranks: attention has the bits of ranks as threads") {
  mpi_rig::as_far_as_possible([] {
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const support::attention_case& c : support::attention_cases_for(ranks)) {
        CAPTURE(ranks);
        check_own<float>(c);
        check_own<pl::bfloat16>(c);
      }
  });
}
