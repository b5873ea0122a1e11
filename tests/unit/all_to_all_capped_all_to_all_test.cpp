// SPDX-License-Identifier: Apache-2.0
//
// The dispatch on ranks that are threads, by bits: every workload, shape and option.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

namespace pl = plateau;
using support::check_dispatch;
using support::dispatch_case;
using support::dispatch_of;

namespace {

const support::on_threads<> threads;

} // namespace

TEST_CASE("rows go to their experts and come back") { support::check_dispatches<float>(threads, 4); }
TEST_CASE("every workload, on ranks with different numbers of tokens, some with none") {
  for (const char* name : support::dispatch_workloads) {
    CAPTURE(name);
    check_dispatch<float>(dispatch_of({20, 0, 33, 1}, 8, 2, name), threads);
    check_dispatch<float>(dispatch_of({17, 31}, 5, 3, name), threads);    // experts that do not divide
    check_dispatch<float>(dispatch_of({9, 10, 11}, 2, 1, name), threads); // more ranks than experts
    check_dispatch<pl::bfloat16>(dispatch_of({40}, 4, 2, name), threads);
  }
}
TEST_CASE("every option leaves the results as they are") {
  for (const char* name : support::dispatch_workloads) {
    CAPTURE(name);
    for (const int slots : {1, 2, 3}) {
      CAPTURE(slots);
      dispatch_case c = dispatch_of({30, 3, 0, 25}, 8, 2, name);
      c.shape.slots = slots;
      check_dispatch<float>(c, threads);
    }
    for (const auto policy :
         {pl::round_policy::expert_first, pl::round_policy::diagonal, pl::round_policy::smooth}) {
      dispatch_case c = dispatch_of({30, 3, 0, 25}, 8, 2, name);
      c.shape.rounds = policy;
      c.shape.send_cap_rows = 7;
      c.shape.receive_cap_rows = 5;
      check_dispatch<float>(c, threads);
    }
    dispatch_case c = dispatch_of({30, 3, 0, 25}, 8, 2, name);
    c.shape.ordered = true;
    check_dispatch<float>(c, threads);
    c.shape.order = pl::row_order::strided;
    check_dispatch<float>(c, threads);
    c.shape.ordered = false;
    c.shape.measure_stalls = true;
    c.no_gates = true;
    check_dispatch<float>(c, threads);
    c.shape.most_rounds = 2;
    check_dispatch<float>(c, threads);
    c.shape.placement.policy = pl::placement_policy::native;
    check_dispatch<float>(c, threads);
    c.shape.send_cap_rows = c.shape.receive_cap_rows = 1;
    c.shape.most_rounds = 0;
    check_dispatch<float>(c, threads);
  }
}
