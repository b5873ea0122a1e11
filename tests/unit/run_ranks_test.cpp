// SPDX-License-Identifier: Apache-2.0
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

using plateau::failure;

TEST_CASE("run_ranks: every rank runs once, side by side") {
  std::atomic<int> seen{0};
  plateau::run_ranks(5, [&](plateau::thread_communicator& comm) {
    CHECK(comm.size() == 5);
    comm.close_step();
    seen += 1 << (4 * comm.rank());
  });
  CHECK(seen == 0x11111);
}

TEST_CASE("run_ranks: the first cause is thrown, with the rank that failed") {
  try {
    plateau::run_ranks(4, [](auto& comm) {
      if (comm.rank() == 2) throw plateau::budget_exceeded("asked for 64 MiB");
      comm.close_step();
    });
    FAIL("nothing was thrown");
  } catch (const plateau::collective_error& e) {
    CHECK(e.failed_rank == 2);
    CHECK(e.cause == "asked for 64 MiB");
    CHECK(std::string(e.what()) ==
          "rank 2 failed in its own code, before any operation (operation 0): asked for 64 MiB");
  }
}

TEST_CASE("run_ranks: where a rank was when it threw is told by what it had issued last") {
  try {
    plateau::run_ranks(2, [](auto& comm) {
      comm.close_step();
      auto pair = comm.split(0, 0);
      pair.close_step();
      pair.host_exchange({}, {}, "routing counts");
      if (comm.rank() == 1) throw std::runtime_error("no label 7");
      comm.close_step();
    });
    FAIL("nothing was thrown");
  } catch (const plateau::collective_error& e) {
    CHECK(std::string(e.what()) ==
          "rank 1 failed in its own code after 'routing counts' (operation 1): no label 7");
  }
}

TEST_CASE("run_ranks_collecting: the failed rank keeps its own error, the others get the group's") {
  const auto outcomes = plateau::run_ranks_collecting(3, [](auto& comm) {
    if (comm.rank() == 1) throw plateau::budget_exceeded("asked for 64 MiB");
    if (comm.rank() == 0) comm.close_step();
    if (comm.rank() == 2) // stays until it has thrown: one that leaves before is named itself
      while (!comm.cause()) std::this_thread::yield();
  });
  REQUIRE(outcomes.size() == 3);
  REQUIRE(outcomes[0].has_value());
  REQUIRE(outcomes[1].has_value());
  CHECK(outcomes[0]->what == failure::kind::collective);
  CHECK(outcomes[0]->failed_rank == 1);
  CHECK(outcomes[1]->what == failure::kind::budget);
  CHECK_FALSE(outcomes[2].has_value()); // had nothing more to do with the others
}

TEST_CASE("run_ranks: anything may be thrown") {
  const auto outcomes = plateau::run_ranks_collecting(2, [](auto& comm) {
    if (comm.rank() == 1) throw 5;
    comm.close_step();
  });
  REQUIRE(outcomes[0].has_value());
  CHECK(outcomes[0]->text == "an exception that is not a std::exception");
}

TEST_CASE("run_ranks: no ranks") {
  CHECK_THROWS_AS(plateau::run_ranks(0, [](auto&) {}), plateau::config_error);
}
