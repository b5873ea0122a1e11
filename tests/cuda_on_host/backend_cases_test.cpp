// SPDX-License-Identifier: Apache-2.0
//
// tests/cuda/backend_cases.hpp on the stand-in, with the threads of a block in an order that no kernel may
// rely on.
#include "cuda/backend_cases.hpp"
#include "stand_in_tools.hpp"

namespace cs = stand_in::cs;
using namespace cuda_backend_cases;

namespace {
// Runs the check twice, and finds nothing wrong and nothing left behind.
template <class F> void in_any_order(F check) {
  for (const auto order : {cs::thread_order::forward, cs::thread_order::shuffled}) {
    cs::options o;
    o.order = order;
    o.delay_microseconds = order == cs::thread_order::forward ? 0 : 50;
    const stand_in::with_settings back(o);
    const auto before = cs::held();
    check();
    CHECK(cs::held() == before);
    CHECK(stand_in::findings() == "");
  }
}
} // namespace

TEST_CASE("teams of every size reduce, in the same order every time") {
  in_any_order([] {
    check_teams<32>();
    check_teams<64>();
    check_teams<256>();
    check_teams<1024>();
  });
}
TEST_CASE_TEMPLATE("grouped products of equal types", T, float, pl::bfloat16, pl::half) {
  for (const transpose op_a : backend_contract::both_ways)
    for (const transpose op_b : backend_contract::both_ways)
      for (const bool aligned : {true, false})
        in_any_order([&] { check_groups<T>(op_a, op_b, aligned, 1.0F); });
}
TEST_CASE("products at the edges of what they take") { in_any_order(check_edges_of_products); }
TEST_CASE("adopted streams stay their owner's") { in_any_order(check_adopted_streams); }
TEST_CASE("events are values") { in_any_order(check_events); }
TEST_CASE("host tasks of any size, as many as are issued") { in_any_order(check_host_calls); }
TEST_CASE("failures reach the streams that wait") { in_any_order(check_relayed_failures); }
TEST_CASE("abandoned calls are skipped and told why") { in_any_order(check_abandoned_calls); }
TEST_CASE("a stream that an exception passes by ends first") { in_any_order(check_unwinding); }
TEST_CASE("what is missing is said in a sentence") { in_any_order(check_refusals); }
