// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/vector_clock.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using plateau::dry::vector_clock;

TEST_CASE("vector clock: streams count apart, near and far") {
  vector_clock c;
  for (const std::size_t s : {0, 7, 8, 9, 40}) {
    CHECK(c.at(s) == 0);
    CHECK(c.advance(s) == 1);
    CHECK(c.advance(s) == 2);
    CHECK(c.at(s) == 2);
  }
  CHECK(c.at(6) == 0);
  CHECK(c.at(39) == 0);
  CHECK(c.at(41) == 0);
  CHECK(c.at(4000) == 0);
}

TEST_CASE("vector clock: joining takes the later of each, and says whether that was news") {
  vector_clock a, b;
  a.advance(1);
  a.advance(1);
  b.advance(1);
  b.advance(12);
  CHECK(a.join(b));
  CHECK(a.at(1) == 2);
  CHECK(a.at(12) == 1);
  CHECK_FALSE(a.join(b));
  CHECK(b.at(1) == 1);
  CHECK(b.join(a));
  CHECK(b.at(1) == 2);
  CHECK_FALSE(vector_clock{}.join(vector_clock{}));
}

TEST_CASE("vector clock: random joins are the maximum over streams") {
  std::mt19937 random(3);
  constexpr std::size_t streams = 20;
  std::vector<vector_clock> clocks(5);
  std::vector<std::vector<vector_clock::epoch>> truth(5, std::vector<vector_clock::epoch>(streams));
  int wrong = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto x = random() % 5, y = random() % 5, s = random() % streams;
    if (random() % 3 != 0) {
      wrong += clocks[x].advance(s) != ++truth[x][s];
    } else {
      bool news = false;
      for (std::size_t k = 0; k < streams; ++k) {
        news = news || truth[y][k] > truth[x][k];
        truth[x][k] = std::max(truth[x][k], truth[y][k]);
      }
      wrong += clocks[x].join(clocks[y]) != news;
    }
    for (std::size_t k = 0; k < streams; ++k) wrong += clocks[x].at(k) != truth[x][k];
  }
  CHECK(wrong == 0);
}
