// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/touched_bytes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace dry = plateau::dry;
using dry::access_range;
using dry::touch;
using plateau::index_t;

namespace {
// One allocation, two streams that know nothing of each other but what a test tells them.
struct rig {
  dry::note_lists lists;
  dry::touched_bytes touched;
  dry::vector_clock host, clocks[4];
  std::uint64_t number = 0;

  // The numbers of the operations that this one races with.
  std::string add(int stream, touch mode, std::uintptr_t at, std::size_t width, index_t rows = 1,
                  std::size_t pitch = 0) {
    auto& clock = clocks[stream];
    const auto epoch = clock.advance(static_cast<std::size_t>(stream));
    const auto r = dry::normal({at, width, rows, pitch, 1, 0, mode});
    std::string found;
    touched.add(lists, r, {{number++, 0, static_cast<std::uint16_t>(stream)}, epoch, mode}, clock, host,
                [&](const dry::touch_note& old, std::uintptr_t first, std::uintptr_t last) {
                  found += std::to_string(old.by.number) + "[" + std::to_string(first) + "," +
                           std::to_string(last) + ")";
                });
    return found;
  }
  int remembered() const {
    int n = 0;
    touched.each(lists, [&](const dry::touch_note&, std::uintptr_t, std::uintptr_t) { ++n; });
    return n;
  }
};
} // namespace

TEST_CASE("touched bytes: a write of all makes one piece of many") {
  rig t;
  CHECK(t.add(1, touch::write, 0, 1000).empty());
  for (std::uintptr_t i = 0; i < 10; ++i) CHECK(t.add(1, touch::update, 100 * i + 10, 50).empty());
  CHECK(t.remembered() == 21);
  CHECK(t.add(1, touch::read, 0, 1000).empty());
  CHECK(t.remembered() == 42);
  CHECK(t.add(1, touch::write, 0, 1000).empty());
  CHECK(t.remembered() == 1);
}

TEST_CASE("touched bytes: of reads by one stream the last is remembered, of each stream one") {
  rig t;
  for (int i = 0; i < 5; ++i) {
    CHECK(t.add(1, touch::read, 0, 100).empty());
    CHECK(t.add(2, touch::read, 0, 100).empty());
  }
  CHECK(t.remembered() == 2);
  CHECK(t.add(3, touch::write, 40, 10) == "9[40,50)8[40,50)");
}

TEST_CASE("touched bytes: a read does not hide the write before it") {
  rig t;
  CHECK(t.add(1, touch::write, 0, 100).empty());
  CHECK(t.add(1, touch::read, 0, 100).empty());
  CHECK(t.add(2, touch::read, 90, 20) == "0[90,100)");
  CHECK(t.add(2, touch::accumulate, 100, 20).empty());
  CHECK(t.add(1, touch::accumulate, 110, 20).empty());
}

TEST_CASE("touched bytes: what the host knows is forgotten") {
  rig t;
  CHECK(t.add(1, touch::write, 0, 100).empty());
  CHECK(t.add(2, touch::write, 200, 10, 5, 20).empty());
  t.host.join(t.clocks[1]);
  t.host.join(t.clocks[2]);
  t.clocks[3].join(t.host);
  CHECK(t.add(3, touch::read, 0, 300).empty());
  CHECK(t.remembered() == 1);
}

TEST_CASE("touched bytes: rows of a strided touch are forgotten one by one") {
  rig t;
  CHECK(t.add(1, touch::write, 0, 8, 100, 32).empty());
  CHECK(t.add(1, touch::write, 8, 8, 100, 32).empty());
  CHECK(t.remembered() == 2);
  CHECK(t.add(1, touch::write, 32 * 30, 16, 40, 32).empty()); // rows 30 to 69 of both
  CHECK(t.remembered() == 5);
  CHECK(t.add(2, touch::read, 32 * 2, 8) == "0[64,72)");
  CHECK(t.add(2, touch::read, 32 * 40 + 8, 4) == "2[1288,1292)");
  CHECK(t.add(1, touch::write, 0, 3200) == "3[64,72)4[1288,1292)");
}

TEST_CASE("touched bytes: a few rows are remembered as pieces, each by its place") {
  rig t;
  for (std::uintptr_t block = 0; block < 100; ++block) // all within one another's extent
    CHECK(t.add(1, touch::write, 64 * block, 64, 4, 100'000).empty());
  CHECK(t.remembered() == 400);
  CHECK(t.add(1, touch::write, 64 * 7, 64, 4, 100'000).empty());
  CHECK(t.remembered() == 400);
  CHECK(t.add(2, touch::read, 100'000 + 64 * 8, 8) == "8[100512,100520)");
  CHECK(t.add(2, touch::read, 64 * 100, 8).empty());
}

TEST_CASE("touched bytes: dispatch rounds of varying rows need no more room in the end than at first") {
  rig t;
  int most_at_first = 0, most = 0;
  for (int round = 0; round < 3000; ++round) {
    std::uintptr_t row = 0;
    for (int expert = 0; expert < 4; ++expert) {
      const auto rows = 1 + (round * 7 + expert * 13) % 25;
      CHECK(t.add(1, touch::write, row * 64, 32, rows, 64).empty());
      CHECK(t.add(1, touch::write, row * 64 + 32, 32, rows, 64).empty());
      CHECK(t.add(1, touch::read, row * 64, 64 * static_cast<std::size_t>(rows)).empty());
      row += static_cast<std::uintptr_t>(rows);
    }
    most = std::max(most, t.remembered());
    if (round < 100) most_at_first = most;
  }
  CHECK(most == most_at_first);
  CHECK(most <= 4 * 25 * 2 * 2); // rows, halves, a write and a read of each
}
