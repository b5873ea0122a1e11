// SPDX-License-Identifier: Apache-2.0
//
// One token for the hosts of all ranks: which host goes on is drawn, never more than one does, and when
// nothing can happen the group fails at once.
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;

TEST_CASE("schedule: exactly one host runs at a time, and a seed decides which") {
  std::set<std::string> courses;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto run = [seed] {
      std::string course; // of all ranks, without a lock
      pl::run_seeded(3, seed, [&](pl::seeded_communicator& comm) {
        for (int i = 0; i < 3; ++i) {
          course += static_cast<char>('a' + comm.rank());
          comm.close_step();
        }
      });
      return course;
    };
    const std::string course = run();
    CHECK(course == run());
    CHECK(course.size() == 9);
    courses.insert(course);
  }
  CHECK(courses.size() > 20);
}

TEST_CASE("schedule: who waits for whom is told at once when nothing can happen") {
  const auto begun = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto outcomes = pl::run_seeded_collecting(2, {seed, nullptr}, [](auto& comm) {
      auto first = comm.split(0, 0), second = comm.split(0, 0);
      pl::seeded_backend backend{comm};
      auto s = backend.make_stream("s");
      std::int64_t x = 0, y = 0;
      auto& mine = comm.rank() == 0 ? first : second;
      mine.exchange(s, {{&x, sizeof x, 1 - comm.rank()}}, {{&y, sizeof y, 1 - comm.rank()}},
                    comm.rank() == 0 ? "clip" : "route");
      backend.wait(backend.record(s));
    });
    for (const auto& o : outcomes) {
      REQUIRE(o.has_value());
      CHECK(o->what == pl::failure::kind::collective);
      CHECK(o->text.find("deadlock: no operation can run and no rank can go on:") == 0);
      CHECK(o->text.find("rank 0 waits in 'clip' (operation 0) for rank 1") != std::string::npos);
      CHECK(o->text.find("rank 1 waits in 'route' (operation 0) for rank 0") != std::string::npos);
    }
  }
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
}

TEST_CASE("schedule: every transfer of an exchange is a step, and steps are written down") {
  std::vector<pl::testing::step> order;
  pl::run_seeded(2, pl::seeded_options{4, &order}, [](auto& comm) {
    pl::seeded_backend backend{comm};
    auto s = backend.make_stream("moves");
    std::int64_t x[3] = {1, 2, 3}, y[3] = {};
    const int peer = 1 - comm.rank();
    comm.exchange(s, {{x, 8, peer}, {x + 1, 8, peer}, {x + 2, 8, peer}},
                  {{y, 8, peer}, {y + 1, 8, peer}, {y + 2, 8, peer}}, "ring");
    backend.wait(backend.record(s));
    if (y[0] + y[1] + y[2] != 6 || y[2] != 3) throw std::runtime_error("wrong rows");
  });
  int transfers = 0;
  for (const auto& s : order)
    if (s.stream == "moves") transfers += s.operation == "ring" && s.line > 0 ? 1 : 100;
  CHECK(transfers == 2 * (3 + 1)); // three receives and the end, on each rank
}

TEST_CASE("schedule: a backend of another world is refused") {
  const auto outcomes = pl::run_seeded_collecting(1, {}, [](auto& comm) {
    pl::seeded_backend stranger;
    auto s = stranger.make_stream("s");
    comm.exchange(s, {}, {}, "ring");
  });
  REQUIRE(outcomes[0].has_value());
  CHECK(outcomes[0]->text.find("stream 's' is not of this rank's world") != std::string::npos);
}
