// SPDX-License-Identifier: Apache-2.0
//
// How a vote goes on real communicators is in their contract suite; here: what is said, and in which group.
#include <plateau/vote.hpp>

#include <doctest/doctest.h>

#include <plateau/run_ranks.hpp>

using plateau::detail::ballot;

TEST_CASE("vote: a text travels as integers, cut to what a ballot holds") {
  const plateau::failure f{plateau::failure::kind::budget, "asked for 7 bytes"};
  CHECK(ballot::text_of(ballot(3, &f).value) == "asked for 7 bytes");
  const plateau::failure long_one{plateau::failure::kind::budget, std::string(5000, 'y')};
  CHECK(ballot::text_of(ballot(3, &long_one).value) == std::string(ballot::text_bytes, 'y'));
  CHECK(ballot(3, nullptr).value[0] == 0);
}

TEST_CASE("vote: P1: one rank out of memory: every rank gets its numbers, in the ranks of the whole group") {
  const auto outcomes = plateau::run_ranks_collecting(4, [](auto& comm) {
    auto half = comm.split(comm.rank() / 2, 0);
    const plateau::failure full{plateau::failure::kind::budget, "asked for 128 bytes, 64 are left"};
    plateau::vote(half, plateau::digest{}.add(1), comm.rank() == 3 ? &full : nullptr, "adamw");
    comm.close_step();
  });
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(o->failed_rank == 3);
    CHECK(o->operation == "adamw");
    CHECK(o->text == "asked for 128 bytes, 64 are left");
  }
}

TEST_CASE("vote: D11: capacities 3 and 4 on different ranks: both are named, on all of them") {
  const auto outcomes = plateau::run_ranks_collecting(3, [](auto& comm) {
    const std::string described = comm.rank() == 1 ? "capacity 4" : "capacity 3";
    plateau::vote(comm, plateau::digest{}.add(described), nullptr, "dispatch", described);
  });
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(o->failed_rank == 1);
    CHECK(o->text ==
          "ranks were given different shapes, types or options: rank 1 against rank 0, 2: rank 1 has "
          "capacity 4; rank 0 has capacity 3");
  }
}
