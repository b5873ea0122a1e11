// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pl = plateau;

TEST_CASE("run_seeded: the first cause is thrown, with the rank that failed") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    try {
      pl::run_seeded(4, seed, [](auto& comm) {
        pl::seeded_backend backend{comm};
        if (comm.rank() == 2) throw pl::budget_exceeded("asked for 64 MiB");
        comm.close_step();
      });
      FAIL("nothing was thrown");
    } catch (const pl::collective_error& e) {
      CHECK(e.failed_rank == 2);
      CHECK(e.cause == "asked for 64 MiB");
    }
  }
}

TEST_CASE("run_seeded_collecting: each rank keeps its own end") {
  const auto outcomes = pl::run_seeded_collecting(3, {7, nullptr}, [](auto& comm) {
    if (comm.rank() == 1) throw 5;
    if (comm.rank() == 0) comm.close_step();
  });
  REQUIRE(outcomes[0].has_value());
  CHECK(outcomes[0]->failed_rank == 1);
  CHECK(outcomes[1]->text == "an exception that is not a std::exception");
  CHECK_FALSE(outcomes[2].has_value());
}

TEST_CASE("run_seeded: errors of a backend name its rank, and no ranks are refused") {
  CHECK_THROWS_WITH_AS(pl::run_seeded(2, 1,
                                      [](auto& comm) {
                                        pl::seeded_backend backend{comm};
                                        backend.device().meter().limit(10);
                                        const pl::device_buffer<char, pl::seeded_backend> b(
                                            backend.device(), 11, pl::tag::other);
                                      }),
                       doctest::Contains("rank"), pl::collective_error);
  CHECK_THROWS_AS(pl::run_seeded(0, 1, [](auto&) {}), pl::config_error);
}
