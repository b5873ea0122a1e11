// SPDX-License-Identifier: Apache-2.0
//
// Exact bytes in bf16, where products widen through scratch and weights have masters beside them.
#include "dry_run_peaks.hpp"

#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

TEST_CASE("exact bytes in bf16") { test::check_grid<plateau::bfloat16>(8, 4); }

TEST_CASE("a step holds what was promised before anything existed, to the byte, in bf16") {
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {2, 1}, {4, 2}})
    test::check_tight_promises(grid, [](const test::forced_case& c) {
      plateau::dry_ranks ran;
      auto accounts = test::dry_step<plateau::bfloat16>(c, ran);
      if (ran.cause) ran.cause->raise();
      for (const std::string& each : ran.findings()) FAIL_CHECK(each);
      return accounts;
    });
  test::check_tight_promises({2, 2}, [](const test::forced_case& c) {
    return test::one_step<plateau::bfloat16>(c, support::on_threads<>{}, test::never_folded);
  });
}
