// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/random_choice.hpp>

#include <doctest/doctest.h>

#include <set>
#include <vector>

using plateau::testing::candidate;
using plateau::testing::preference;
using plateau::testing::random_numbers;

TEST_CASE("random_numbers: the published sequence of splitmix64, the same everywhere") {
  random_numbers random(1234567);
  CHECK(random.next() == 6457827717110365317u);
  CHECK(random.next() == 3203168211198807973u);
  CHECK(random.next() == 9817491932198370423u);
}

TEST_CASE("preference: whatever a seed prefers, everything that may happen happens at some time") {
  std::vector<candidate> all;
  for (int r = 0; r < 3; ++r) all.push_back({true, r});
  for (std::uint64_t i = 0; i < 5; ++i) all.push_back({false, static_cast<int>(i % 3), i, 1, i, 10 + i});
  std::set<unsigned> eagerness;
  int seeds_that_starve = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    random_numbers random(seed);
    const preference prefers(random);
    eagerness.insert(prefers.steps_between_calls());
    std::vector<int> chosen(all.size());
    for (int i = 0; i < 2000; ++i) ++chosen[prefers.choose(random, all)];
    int never = 0;
    for (const int n : chosen) never += n == 0 ? 1 : 0;
    CHECK(never <= 4); // one stream, or one rank's host and streams
    seeds_that_starve += never != 0 ? 1 : 0;
    for (const candidate& alone : all) // what is starved still runs when nothing else can
      CHECK(prefers.choose(random, {&alone, 1}) == 0);
  }
  CHECK(eagerness.size() == 4);
  CHECK(seeds_that_starve > 20);
  CHECK(seeds_that_starve < 120);
}
