// SPDX-License-Identifier: Apache-2.0
//
// The earliest rank, of equal ones the lowest, against a search through all.
#include <plateau/dry_run/rank_queue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

TEST_CASE("a queue of ranks knows the earliest") {
  std::mt19937 random(4);
  for (const std::size_t ranks : {1u, 2u, 3u, 7u, 8u, 9u, 64u}) {
    plateau::dry::rank_queue queue(ranks);
    std::vector<double> times(ranks, never);
    CHECK(queue.first_time() == never);
    for (int i = 0; i < 2000; ++i) {
      const std::size_t rank = random() % ranks;
      times[rank] = random() % 8 == 0 ? never : static_cast<double>(random() % 16);
      queue.set(rank, times[rank]);
      const auto first = std::min_element(times.begin(), times.end());
      REQUIRE(queue.first_time() == *first);
      if (*first != never) REQUIRE(queue.first() == static_cast<std::size_t>(first - times.begin()));
    }
  }
}

TEST_CASE("a queue of nobody has nothing to come") {
  CHECK(plateau::dry::rank_queue(0).first_time() == never);
}

} // namespace
