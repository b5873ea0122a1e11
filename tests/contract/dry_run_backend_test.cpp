// SPDX-License-Identifier: Apache-2.0
//
// The backend without data, held to what the backend contract says without looking at data: sizes of 0,
// refusals with their sizes and lines, meters. Left out are the parts that compare values (launches, row
// kernels, copies, products and their bits, grouping, scans, column sums, identical runs), those that watch
// host tasks run (streams and events, failures of tasks and kernels: a dry run runs none), and fetches, which
// give a scenario's values here. Instead, tests/unit/dry_run_backend_test.cpp compares what is counted with
// the host backend's, and the order check stands for the order of events.
#include "backend_contract.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>

#include <doctest/doctest.h>

#include <memory>

namespace pl = plateau;
using dry_backend = pl::dry_run<pl::host_backend>;

template <> inline constexpr bool backend_contract::has_data<dry_backend> = false;

TEST_CASE("dry_run<host_backend>") {
  // What it records grows with each operation.
  backend_contract::without_data<dry_backend>(
      {[] { return std::make_unique<dry_backend>("rank 0"); }, false});
}
TEST_CASE("dry_run<host_backend> that records nothing and checks no order: counters and meters alone") {
  backend_contract::without_data<dry_backend>({[] {
    pl::dry_options options;
    options.record_program = options.check_order = false;
    return std::make_unique<dry_backend>("rank 0", options);
  }});
}
