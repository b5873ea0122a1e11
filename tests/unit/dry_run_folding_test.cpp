// SPDX-License-Identifier: Apache-2.0
//
// Which ranks are alike: what counts as the same, and who stands for whom.
#include <plateau/dry_run/folding.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace {

namespace dry = plateau::dry;
using dry::engine;
using plateau_test::program_writer;

// A little of everything, on one of four ranks.
program_writer ordinary(int rank) {
  program_writer w(rank, 4);
  const auto s = w.stream("main"), t = w.stream("side");
  w.phase("setup");
  w.memory(0, 2, 4096);
  w.compute(s, 100);
  w.operation(t, engine::host_to_device, 0, 64);
  w.wait(s, t, 1);
  w.exchange(s, {{(rank + 1) % 4, 256}, {(rank + 2) % 4, 128}},
             {{(rank + 3) % 4, 256}, {(rank + 2) % 4, 128}});
  w.host_exchange();
  w.host_wait(s, 3, true);
  w.close(t);
  return w;
}

} // namespace

TEST_CASE("ranks that did the same with other peers are alike") {
  const auto expected = dry::digest_of(ordinary(0).program());
  for (int r = 1; r < 4; ++r) CHECK(dry::digest_of(ordinary(r).program()) == expected);
  // In another order of peers, and with other numbers in its tables.
  program_writer w(0, 4);
  const auto early = w.group("/0", {0, 2});
  const auto s = w.stream("main"), t = w.stream("side");
  w.phase("setup");
  w.memory(0, 2, 4096);
  w.compute(s, 100, "kernel", 7);
  w.operation(t, engine::host_to_device, 0, 64, "another line", 8);
  w.wait(s, t, 1);
  w.exchange(s, {{2, 128}, {1, 256}}, {{3, 256}, {2, 128}});
  w.host_exchange();
  w.host_wait(s, 3, true);
  w.close(t);
  static_cast<void>(early);
  CHECK(dry::digest_of(w.program()) == expected);
}

TEST_CASE("every difference in what was done or how much tells ranks apart") {
  const std::function<void(dry::rank_program&)> differences[] = {
      [](auto& p) { p.instructions.pop_back(); },
      [](auto& p) { p.instructions.push_back(p.instructions.back()); },
      [](auto& p) { std::swap(p.instructions[4], p.instructions[5]); },
      [](auto& p) { p.instructions[3].bytes += 1; },                        // of memory
      [](auto& p) { p.instructions[3].stream += 1; },                       // its tag
      [](auto& p) { p.instructions[3].other += 1; },                        // its pool
      [](auto& p) { p.instructions[4].flops += 1; },                        // of a kernel
      [](auto& p) { p.instructions[4].type = plateau::scalar_kind::bf16; }, // at another rate
      [](auto& p) { p.instructions[5].on = engine::device_to_host; },       // on another engine
      [](auto& p) { p.instructions[5].bytes += 1; },                        // of a copy
      [](auto& p) { p.instructions[6].bytes += 1; },                        // what a wait is for
      [](auto& p) { p.instructions[9].round_trip = 0; },                    // a wait or a fetch
      [](auto& p) { p.exchanges[0].sends[0].bytes += 1; },                  // what is sent
      [](auto& p) { p.exchanges[0].receives[1].bytes += 1; },               // and received
      [](auto& p) { p.exchanges[0].sends.pop_back(); },                     //
      [](auto& p) { p.exchanges[0].receives[0].bytes += 8, p.exchanges[0].sends[0].bytes -= 8; },
      [](auto& p) { p.host_exchanges[0].bytes += 8; }, // integers given
      [](auto& p) { p.groups[0].members.pop_back(); }, // in a group of another size
  };
  const auto expected = dry::digest_of(ordinary(1).program());
  int number = 0;
  for (const auto& change : differences) {
    CAPTURE(number++);
    auto w = ordinary(1);
    REQUIRE(w.program().instructions[3].what == dry::action::memory);
    REQUIRE(w.program().instructions[9].what == dry::action::host_wait);
    change(w.program());
    CHECK(dry::digest_of(w.program()) != expected);
  }
}

TEST_CASE("the first of those who gave the same stands for them") {
  const std::vector<std::int64_t> given{7, 1, 7, 2, 7, 1, 8, 1, 7, 2, 8, 1};
  CHECK(dry::first_alike(given, 2) == std::vector<int>{0, 1, 0, 3, 1, 3});
  CHECK(dry::first_alike(given, 12) == std::vector<int>{0});
  CHECK(dry::first_alike(given, 1) == std::vector<int>{0, 1, 0, 3, 0, 1, 6, 1, 0, 3, 6, 1});
  CHECK(dry::first_alike({}, 2).empty());
}

TEST_CASE("ranks are tied by their groups and by who stands for them") {
  const std::vector<int> alone{0, 1, 2, 3, 4, 5}, none(6, -1);
  CHECK(dry::tied_ranks(alone, none) == alone);
  CHECK(dry::tied_ranks(alone, std::vector<int>{1, 1, 3, 3, -1, 5}) == std::vector<int>{0, 0, 2, 2, 4, 5});
  // 3 stands in for 5, so the groups of both meet; 4, which is in none, only has its own kind.
  CHECK(dry::tied_ranks(std::vector<int>{0, 1, 2, 3, 4, 3}, std::vector<int>{0, 0, 2, 2, -1, 0}) ==
        std::vector<int>{0, 0, 0, 0, 4, 0});
  CHECK(dry::tied_ranks({}, {}).empty());
}

TEST_CASE("places are counted among the firsts of each part") {
  const std::vector<int> first{0, 1, 0, 3, 1, 5, 5};
  CHECK(dry::places_among_firsts(first, std::vector<int>{0, 1, 0, 0, 1, 1, 1}) ==
        std::vector<int>{0, 0, 0, 1, 0, 1, 1});
}

TEST_CASE("places are counted among the firsts alone") {
  CHECK(dry::places_among_firsts(std::vector<int>{0, 1, 0, 3, 1, 3}) == std::vector<int>{0, 1, 0, 2, 1, 2});
  CHECK(dry::places_among_firsts(std::vector<int>{0, 0, 0}) == std::vector<int>{0, 0, 0});
  CHECK(dry::places_among_firsts(std::vector<int>{0, 1, 2}) == std::vector<int>{0, 1, 2});
  CHECK(dry::places_among_firsts({}).empty());
}
