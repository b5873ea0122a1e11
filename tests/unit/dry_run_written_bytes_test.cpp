// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/written_bytes.hpp>

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace dry = plateau::dry;
using dry::access_range;
using plateau::index_t;

namespace {
access_range range(std::uintptr_t at, std::size_t width, index_t rows = 1, std::size_t pitch = 0,
                   index_t count = 1, std::size_t stride = 0) {
  return dry::normal({at, width, rows, pitch, count, stride, dry::touch::write});
}
} // namespace

TEST_CASE("written bytes: intervals grow together and come apart") {
  dry::written_bytes w;
  w.add(range(100, 10));
  w.add(range(120, 10));
  CHECK_FALSE(w.missing(range(100, 10)));
  const auto gap = w.missing(range(105, 20));
  REQUIRE(gap);
  CHECK(gap->first == 110);
  CHECK(gap->second == 120);
  w.add(range(110, 10));
  CHECK_FALSE(w.missing(range(100, 30)));
  w.erase(range(104, 2));
  CHECK(w.missing(range(100, 30))->first == 104);
  CHECK(w.missing(range(100, 30))->second == 106);
}

TEST_CASE("written bytes: column blocks in any order fill their matrix") {
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 0, 3, 1}}) {
    dry::written_bytes w;
    for (std::size_t i = 0; i < 4; ++i) {
      REQUIRE(w.missing(range(1000, 64 * 100)));
      w.add(range(1000 + static_cast<std::uintptr_t>(order[i]) * 16, 16, 100, 64));
      CHECK_FALSE(w.missing(range(1000 + static_cast<std::uintptr_t>(order[i]) * 16, 16, 100, 64)));
    }
    CHECK_FALSE(w.missing(range(1000, 64 * 100)));
    CHECK_FALSE(w.missing(range(1007, 5, 30, 111)));
  }
}

TEST_CASE("written bytes: blocks of a batch, and tiles one above the other") {
  dry::written_bytes w;
  for (int i = 0; i < 4; ++i) w.add(range(1000 + static_cast<std::uintptr_t>(i) * 640, 32, 10, 64));
  CHECK_FALSE(w.missing(range(1000, 32, 40, 64)));
  CHECK(w.missing(range(1000, 32, 41, 64))->first == 1000 + 40 * 64);
  w.add(range(1032, 8, 40, 64, 4, 8)); // four blocks side by side
  CHECK_FALSE(w.missing(range(1000, 64 * 40)));
}

TEST_CASE("written bytes: random writes and erasures against a bit for each byte") {
  std::mt19937 random(11);
  const auto pick = [&](int lo, int hi) { return std::uniform_int_distribution(lo, hi)(random); };
  int wrong = 0, wrong_gap = 0, held = 0, lacking = 0;
  for (int program = 0; program < 3000; ++program) {
    constexpr std::uintptr_t base = 5000;
    constexpr std::size_t size = 200;
    dry::written_bytes w;
    std::vector<bool> truth(size);
    const int unit = program % 2 == 0 ? 4 : 1; // multiples of one size adjoin more often
    const auto some_of = [&](int lo, int hi) { return static_cast<std::size_t>(pick(lo, hi) * unit); };
    const std::size_t usual = some_of(2, 6);
    for (int step = 0; step < 40; ++step) {
      access_range raw{0, some_of(1, 4), 1, 0, 1, 0, dry::touch::write};
      if (pick(0, 2) != 0) {
        raw.rows = pick(2, 6);
        raw.pitch = pick(0, 4) == 0 ? some_of(1, 8) : usual;
      }
      if (pick(0, 5) == 0) {
        raw.count = pick(2, 3);
        raw.stride = some_of(1, 20);
      }
      while (raw.extent() > size) --(raw.count > 1 ? raw.count : raw.rows);
      raw.address = base + some_of(0, (unit == 4 ? static_cast<int>(size - raw.extent()) : 30) / unit);
      const auto each_byte = [&](auto f) {
        for (index_t i = 0; i < raw.count; ++i)
          for (index_t j = 0; j < raw.rows; ++j)
            for (std::size_t k = 0; k < raw.width; ++k)
              f(raw.address - base + static_cast<std::size_t>(i) * raw.stride +
                static_cast<std::size_t>(j) * raw.pitch + k);
      };
      const auto r = dry::normal(raw);
      const int what = pick(0, 9);
      if (what < 4) {
        w.add(r);
        each_byte([&](std::size_t i) { truth[i] = true; });
      } else if (what < 6) {
        w.erase(r);
        each_byte([&](std::size_t i) { truth[i] = false; });
      } else {
        bool all = true;
        each_byte([&](std::size_t i) { all = all && truth[i]; });
        const auto gap = w.missing(r);
        wrong += all == gap.has_value();
        (all ? held : lacking) += 1;
        if (gap)
          for (auto x = gap->first; x < gap->second; ++x) wrong_gap += truth[x - base];
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(wrong_gap == 0);
  CHECK(held > 3000);
  CHECK(lacking > 3000);
}
