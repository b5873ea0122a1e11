// SPDX-License-Identifier: Apache-2.0
//
// Segments from random counts and moved pieces: every row is in one segment, each rank computes as many of
// its own as it can, and the segments of an expert follow one another in the rows of a source.
#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/all_to_all/segment_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;

namespace {

pl::dispatch_plan plan_of(int ranks, index_t experts, std::vector<index_t> rows,
                          std::vector<pl::moved_piece> pieces = {}) {
  pl::dispatch_plan p;
  p.ranks = ranks;
  p.experts = experts;
  p.rows = std::move(rows);
  p.pieces = std::move(pieces);
  return p;
}
index_t all_of(const pl::dispatch_plan& p, index_t e) {
  index_t sum = 0;
  for (int source = 0; source < p.ranks; ++source) sum += p.rows_of(source, e);
  return sum;
}

// What must hold of any table.
void check_table(pl::segment_table& table, const pl::dispatch_plan& p) {
  const pl::expert_homes homes{p.experts, p.ranks};
  for (int me = 0; me < p.ranks; ++me) {
    table.build(p, me);
    std::map<std::pair<index_t, int>, index_t> wanted; // rows, by expert and rank
    for (index_t e = 0; e < p.experts; ++e) wanted[{e, homes.home(e)}] = all_of(p, e);
    for (const pl::moved_piece& piece : p.pieces) {
      wanted[{piece.expert, homes.home(piece.expert)}] -= piece.rows;
      wanted[{piece.expert, piece.rank}] += piece.rows;
    }
    std::map<std::pair<index_t, int>, index_t> given; // rows of an expert that a source sends
    std::map<index_t, index_t> next;                  // where the next segment of an expert begins at `me`
    CHECK(table.first_of(0) == 0);
    CHECK(table.first_of(p.ranks) == table.size());
    for (index_t g = 0; g < table.size(); ++g) {
      const pl::segment s = table[g];
      CHECK(table.ranks()[static_cast<std::size_t>(g)] == s.rank);
      CHECK(g >= table.first_of(s.rank));
      CHECK(g < table.first_of(s.rank + 1));
      CHECK(table.foreign(g) == (homes.home(s.expert) != s.rank));
      if (g > table.first_of(s.rank)) { // own experts first, each part in order
        CHECK(table.foreign(g) >= table.foreign(g - 1));
        if (table.foreign(g) == table.foreign(g - 1)) CHECK(s.expert > table[g - 1].expert);
      }
      index_t sum = 0;
      for (int source = 0; source < p.ranks; ++source) {
        const index_t n = table.rows(g, source);
        CHECK(n >= 0);
        CHECK(table.rows()[static_cast<std::size_t>(g * p.ranks + source)] == n);
        given[{s.expert, source}] += n;
        sum += n;
      }
      CHECK(sum > 0);
      CHECK(sum == (wanted[{s.expert, s.rank}]));
      wanted[{s.expert, s.rank}] = 0;
      // A rank's own rows cost no transfer: they are taken first.
      CHECK(table.rows(g, s.rank) == std::min(sum, p.rows_of(s.rank, s.expert)));
      CHECK(table.first_in_group(g) == next[s.expert]);
      next[s.expert] += table.rows(g, me);
    }
    for (const auto& [where, rows] : wanted) CHECK(rows == 0); // no segment is missing
    for (index_t e = 0; e < p.experts; ++e)
      for (int source = 0; source < p.ranks; ++source) CHECK((given[{e, source}]) == p.rows_of(source, e));
  }
}

} // namespace

TEST_CASE("an expert that no row goes to has no segment") {
  pl::segment_table table(2, 4, 0);
  table.build(plan_of(2, 4, {5, 0, 0, 2, 0, 0, 1, 0}), 1);
  REQUIRE(table.size() == 3);
  CHECK(table[0].expert == 0);
  CHECK(table[1].expert == 2);
  CHECK(table[2].expert == 3);
  CHECK(table.first_of(1) == 1);
  CHECK(table.rows(2, 0) == 2);
  table.build(plan_of(2, 4, std::vector<index_t>(8)), 0);
  CHECK(table.size() == 0);
}
TEST_CASE("own rows stay, the rest is dealt in the order of the sources") {
  // Expert 0 of rank 0: 10, 4 and 6 rows; rank 1 computes 7 of them, rank 2 all that it has and 1 more.
  pl::segment_table table(3, 3, 2);
  table.build(plan_of(3, 3, {10, 0, 0, 4, 0, 0, 6, 0, 0}, {{0, 1, 7}, {0, 2, 7}}), 0);
  REQUIRE(table.size() == 3);
  const auto rows = [&](index_t g) {
    return std::vector<index_t>{table.rows(g, 0), table.rows(g, 1), table.rows(g, 2)};
  };
  CHECK(rows(0) == std::vector<index_t>{6, 0, 0});
  CHECK(rows(1) == std::vector<index_t>{3, 4, 0});
  CHECK(rows(2) == std::vector<index_t>{1, 0, 6});
  CHECK(table.first_in_group(1) == 6);
  CHECK(table.first_in_group(2) == 9);
}
TEST_CASE("an expert whose rows have all moved has no segment at home") {
  pl::segment_table table(2, 2, 1);
  table.build(plan_of(2, 2, {5, 0, 1, 0}, {{0, 1, 6}}), 0);
  REQUIRE(table.size() == 1);
  CHECK(table[0].rank == 1);
  CHECK(table.foreign(0));
}

TEST_CASE("random counts, with pieces of the planner and without") {
  std::mt19937_64 engine(5);
  const auto up_to = [&](index_t least, index_t most) {
    return least + static_cast<index_t>(engine() % static_cast<std::uint64_t>(most - least + 1));
  };
  index_t moved = 0;
  for (int i = 0; i < 400; ++i) {
    CAPTURE(i);
    const int ranks = static_cast<int>(up_to(1, 8));
    const index_t experts = up_to(1, 20), foreign = up_to(0, 4);
    std::vector<index_t> rows(static_cast<std::size_t>(ranks * experts)),
        of_expert(static_cast<std::size_t>(experts));
    const index_t hot = up_to(0, experts - 1), most = up_to(0, 30);
    for (int r = 0; r < ranks; ++r)
      for (index_t e = 0; e < experts; ++e) {
        const index_t n = up_to(0, 2) == 0 ? 0 : up_to(0, e == hot ? 10 * most : most);
        rows[static_cast<std::size_t>(r * experts + e)] = n;
        of_expert[static_cast<std::size_t>(e)] += n;
      }
    pl::placement_options options;
    options.policy = i % 3 == 0   ? pl::placement_policy::native
                     : i % 3 == 1 ? pl::placement_policy::published_least_loaded
                                  : pl::placement_policy::bounded_least_loaded;
    options.foreign_experts = foreign;
    options.least_piece_rows = up_to(1, 20);
    pl::placement_plan placement(ranks, experts, options);
    const auto pieces = placement.make(of_expert);
    moved += static_cast<index_t>(pieces.size());
    pl::segment_table table(ranks, experts, static_cast<index_t>(pieces.size()));
    check_table(table, plan_of(ranks, experts, rows, {pieces.begin(), pieces.end()}));
  }
  CHECK(moved > 300);
}

TEST_CASE("pieces and rows that do not fit together are refused") {
  pl::segment_table table(2, 2, 2);
  CHECK_THROWS_WITH_AS(
      table.build(plan_of(2, 2, {5, 0, 1, 0}, {{0, 1, 7}}), 0),
      "plateau: dispatch: 7 rows of expert 0 are moved, but it has 6: the plan is not one of "
      "this dispatch",
      const pl::config_error&);
  CHECK_THROWS_AS(table.build(plan_of(2, 2, {5, 3, 1, 0}, {{1, 0, 4}}), 1), const pl::config_error&);
}
