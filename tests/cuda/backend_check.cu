// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on a GPU, beyond the contract: backend_cases.hpp, and grids that no CPU walks in time.
#include "cuda/backend_cases.hpp"

#include <cstdint>
#include <vector>

using namespace cuda_backend_cases;

namespace {

constexpr index_t beyond = index_t{1} << 32;

// Only what lies beyond 32 bits leaves a mark, by its number.
struct mark_far_elements {
  PLATEAU_HD void operator()(index_t i, pl::view<std::int32_t> marks) const {
    if (i >= beyond) marks[i - beyond] += 1;
  }
};
struct mark_far_rows {
  static constexpr int team_threads = 32;
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, pl::view<std::int32_t> marks) const {
    if (row >= beyond) team.once([=] { marks[row - beyond] += 1; });
  }
};

} // namespace

TEST_CASE("teams of every size reduce, in the same order every time") {
  check_teams<32>();
  check_teams<64>();
  check_teams<128>();
  check_teams<256>();
  check_teams<1024>();
}
TEST_CASE_TEMPLATE("grouped products of equal types", T, float, pl::bfloat16, pl::half) {
  for (const transpose op_a : backend_contract::both_ways)
    for (const transpose op_b : backend_contract::both_ways)
      for (const bool aligned : {true, false})
        for (const float beta : {0.0F, 1.0F}) check_groups<T>(op_a, op_b, aligned, beta);
}
TEST_CASE("products at the edges of what they take") { check_edges_of_products(); }
TEST_CASE("adopted streams stay their owner's") { check_adopted_streams(); }
TEST_CASE("events are values") { check_events(); }
TEST_CASE("host tasks of any size, as many as are issued") { check_host_calls(); }
TEST_CASE("failures reach the streams that wait") { check_relayed_failures(); }
TEST_CASE("abandoned calls are skipped and told why") { check_abandoned_calls(); }
TEST_CASE("a stream that an exception passes by ends first") { check_unwinding(); }
TEST_CASE("what is missing is said in a sentence") { check_refusals(); }

TEST_CASE("grids of more than 2^32 elements and rows") {
  rig r = new_rig();
  auto marks = r.upload(std::vector<std::int32_t>(10));
  r.b.launch(r.s, pl::elements{beyond + 10}, mark_far_elements{}, inout(marks.all()));
  CHECK(r.download(marks.all()) == std::vector<std::int32_t>(10, 1));
  r.b.launch(r.s, pl::rows{beyond + 10}, mark_far_rows{}, inout(marks.all()));
  CHECK(r.download(marks.all()) == std::vector<std::int32_t>(10, 2));
}
