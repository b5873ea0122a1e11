// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/seeded_stream.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace pl = plateau;
using pl::testing::schedule;
using pl::testing::seeded_event;
using pl::testing::seeded_stream;

TEST_CASE("seeded_stream: under some seed nothing has run when it was issued, under some everything") {
  int none = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    auto world = std::make_shared<schedule>(1, pl::seeded_options{seed, nullptr});
    int runs = 0;
    seeded_stream s(world, 0, "main", false);
    for (int i = 0; i < 6; ++i) s.push([&] { ++runs; });
    none += runs == 0 ? 1 : 0;
    all += runs == 6 ? 1 : 0;
    s.record().wait();
    CHECK(runs == 6);
  }
  CHECK(none > 10);
  CHECK(all > 5);
}

TEST_CASE("seeded_stream: its end runs what is left, and skips it where an exception passes") {
  auto world = std::make_shared<schedule>(1, pl::seeded_options{});
  int runs = 0;
  seeded_event late;
  {
    seeded_stream s(world, 0, "main", false);
    for (int i = 0; i < 20; ++i) s.push([&] { ++runs; });
    late = s.record();
  }
  CHECK(runs == 20);
  CHECK(late.done()); // events outlive streams
  late.wait();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto other = std::make_shared<schedule>(1, pl::seeded_options{seed, nullptr});
    seeded_event behind;
    try {
      seeded_stream s(other, 0, "main", false);
      s.push([] {});
      behind = s.record();
      throw std::runtime_error("passes");
    } catch (const std::runtime_error&) {
    }
    CHECK(behind.done());
  }
}

TEST_CASE("seeded_stream: a stream waits for another's event, and takes its failure as it is") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto world = std::make_shared<schedule>(1, pl::seeded_options{seed, nullptr});
    std::string seen;
    seeded_stream a(world, 0, "a", false), b(world, 0, "b", false);
    a.push([&] { seen += 'a'; });
    b.wait(a.record());
    b.push([&] { seen += 'b'; });
    b.record().wait();
    CHECK(seen == "ab");
    a.push([] { throw std::runtime_error("7 apples"); }, {"file.cpp", 3});
    b.wait(a.record());
    b.push([&] { seen += 'c'; });
    CHECK_THROWS_WITH_AS(b.record().wait(), "7 apples (on stream 'a' at file.cpp:3)", pl::error);
    CHECK(seen == "ab");
  }
}
