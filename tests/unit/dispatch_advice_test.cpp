// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch says of its cap: the same on every rank, from groups that can be counted by hand.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <string>

namespace pl = plateau;
using pl::index_t;

namespace {

// Two ranks of two experts each; every rank sends `rows` rows to each expert.
support::dispatch_case even(index_t rows, index_t cap) {
  support::dispatch_case c;
  c.tokens = {4 * rows, 4 * rows};
  c.shape.experts = 4;
  c.shape.widths = {2};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = cap;
  c.shape.placement.policy = pl::placement_policy::native;
  c.shape.fewest_group_rows = 8;
  c.expert_of = [](int, index_t t, index_t) { return static_cast<int>(t % 4); };
  return c;
}

void check_advice(const support::dispatch_case& c, index_t rounds, index_t groups, const std::string& part) {
  for (const auto& r : support::run_dispatch<float>(c, support::on_threads<>{}))
    for (const pl::dispatch_statistics& s : {r.forward, r.backward}) {
      CHECK(s.rounds == rounds);
      CHECK(s.segments == 4);
      CHECK(s.groups == groups);
      CHECK(std::string(s.advice()).find(part) != std::string::npos);
      CHECK(std::string(s.advice()).empty() == part.empty());
    }
}

} // namespace

TEST_CASE("a cap that cuts every expert into small products is too fine") {
  // 128 rows go to each rank; with 4 in a round no product has more, where 8 are wanted.
  check_advice(even(32, 4), 32, 64, "too fine");
}
TEST_CASE("a cap that leaves products large enough, in enough rounds, is left alone") {
  check_advice(even(32, 16), 8, 16, "");
}
TEST_CASE("a cap that leaves few rounds is too coarse") {
  check_advice(even(32, 64), 2, 4, "too coarse");
  check_advice(even(32, 1000), 1, 4, "too coarse");
}
TEST_CASE("small products that no cap would make larger are not the cap's fault") {
  auto c = even(1, 1);               // experts with two rows each
  check_advice(c, 4, 8, "too fine"); // one row at a time
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 2;
  c.tokens = {1, 0};
  const auto found = support::run_dispatch<float>(c, support::on_threads<>{});
  CHECK(std::string(found[0].forward.advice()).find("too fine") == std::string::npos);
}
TEST_CASE("nothing is said where nothing moves") {
  auto c = even(0, 4);
  for (const auto& r : support::run_dispatch<float>(c, support::on_threads<>{}))
    CHECK(std::string(r.forward.advice()).empty());
}
