// SPDX-License-Identifier: Apache-2.0
//
// First in, first out, against a deque, while it grows and turns over.
#include <plateau/dry_run/command_queue.hpp>

#include <doctest/doctest.h>

#include <deque>
#include <random>

namespace {

TEST_CASE("a command queue gives back what was pushed, in order") {
  plateau::dry::command_queue queue;
  std::deque<std::uint32_t> expected;
  std::mt19937 random(3);
  CHECK(queue.empty());
  for (std::uint32_t i = 0; i < 20000; ++i) {
    // More pushes than pops in some stretches, fewer in others.
    if (random() % 16 < (i / 2000 % 2 == 0 ? 10u : 5u)) {
      queue.push(i);
      expected.push_back(i);
    } else if (!expected.empty()) {
      REQUIRE(queue.pop() == expected.front());
      expected.pop_front();
    }
    REQUIRE(queue.size() == expected.size());
    REQUIRE(queue.empty() == expected.empty());
    if (i % 500 == 0)
      for (std::size_t k = 0; k < expected.size(); ++k) REQUIRE(queue[k] == expected[k]);
  }
}

} // namespace
