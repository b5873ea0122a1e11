// SPDX-License-Identifier: Apache-2.0
//
// Integers of ranks to one another, without a communicator around them.
#include <plateau/host/integer_board.hpp>

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

namespace pl = plateau;
using namespace plateau::host;

namespace {
// What each of the ranks gets, or the text of its failure, when rank r gives `mine(r)` in each of the rounds.
template <class Mine>
std::vector<std::string> on_ranks(int ranks, int rounds, std::vector<int> origin, Mine mine) {
  abort_record record(10, std::chrono::minutes(1));
  integer_board board(ranks);
  std::vector<std::string> told(std::size_t(ranks), "");
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      for (int round = 0; round < rounds; ++round) {
        const std::vector<std::int64_t> give = mine(r, round);
        std::vector<std::int64_t> all(give.size() * std::size_t(ranks));
        abort_record::lock_type lock(record.mutex());
        try {
          board.exchange(record, lock, origin, r, give, all, "counts", std::uint64_t(round));
        } catch (const pl::collective_error& e) {
          told[std::size_t(r)] = std::to_string(e.failed_rank) + ": " + e.cause;
          return;
        }
        for (const std::int64_t v : all) told[std::size_t(r)] += std::to_string(v) + " ";
      }
    });
  for (std::thread& t : threads) t.join();
  return told;
}
} // namespace

TEST_CASE("integer board: rounds do not mix, though a fast rank is in the next one") {
  const auto told = on_ranks(3, 40, {0, 1, 2}, [](int r, int round) {
    return std::vector<std::int64_t>(std::size_t(round % 3), 10 * round + r);
  });
  std::string expected;
  for (int round = 0; round < 40; ++round)
    for (int r = 0; r < 3; ++r)
      for (int i = 0; i < round % 3; ++i) expected += std::to_string(10 * round + r) + " ";
  for (const std::string& each : told) CHECK(each == expected);
}

TEST_CASE("integer board: different lengths fail all, by the outermost numbers of the ranks") {
  const auto told =
      on_ranks(3, 1, {4, 9, 7}, [](int r, int) { return std::vector<std::int64_t>(r == 1 ? 2 : 5); });
  for (const std::string& each : told)
    CHECK(each ==
          "9: ranks give different numbers of integers: rank 4 gives 5, rank 9 gives 2, rank 7 gives 5");
}
