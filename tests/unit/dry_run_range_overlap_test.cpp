// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/range_overlap.hpp>

#include <doctest/doctest.h>

#include <random>
#include <set>

namespace dry = plateau::dry;
using dry::access_range;

namespace {
access_range blocks(std::uintptr_t at, std::size_t width, plateau::index_t rows, std::size_t pitch,
                    plateau::index_t count, std::size_t stride) {
  return {at, width, rows, pitch, count, stride, dry::touch::read};
}
access_range columns(std::uintptr_t at, std::size_t width, plateau::index_t rows, std::size_t pitch) {
  return blocks(at, width, rows, pitch, 1, 0);
}
std::set<std::uintptr_t> bytes_of(const access_range& r) {
  std::set<std::uintptr_t> s;
  for (plateau::index_t i = 0; i < r.count; ++i)
    for (plateau::index_t j = 0; j < r.rows; ++j)
      for (std::size_t k = 0; k < r.width; ++k)
        s.insert(r.address + static_cast<std::size_t>(i) * r.stride + static_cast<std::size_t>(j) * r.pitch +
                 k);
  return s;
}
bool share(const std::set<std::uintptr_t>& a, const std::set<std::uintptr_t>& b) {
  for (const auto x : a)
    if (b.count(x) != 0) return true;
  return false;
}
} // namespace

TEST_CASE("range overlap: what is contiguous has one row in normal form") {
  CHECK(dry::normal(columns(0, 8, 4, 8)).contiguous());
  CHECK(dry::normal(columns(0, 8, 4, 6)).width == 26);        // rows that overlap
  CHECK(dry::normal(blocks(0, 8, 4, 32, 4, 8)).contiguous()); // blocks side by side fill the rows
  CHECK(dry::normal(blocks(0, 8, 1, 0, 4, 8)).contiguous());
  CHECK(dry::normal(columns(0, 8, 4, 0)).contiguous()); // the same row again and again
  const auto heads = dry::normal(blocks(0, 8, 100, 64, 3, 8));
  CHECK(heads.width == 24);
  CHECK(heads.rows == 100);
  CHECK(heads.count == 1);
  CHECK(dry::normal(columns(0, 0, 4, 8)).empty());
}

TEST_CASE("range overlap: column blocks of one matrix are disjoint, whatever their extents") {
  CHECK_FALSE(dry::overlap(columns(0, 16, 100, 64), columns(16, 16, 100, 64)));
  CHECK_FALSE(dry::overlap(columns(0, 16, 100, 64), columns(48, 16, 50, 64)));
  CHECK(dry::overlap(columns(0, 17, 100, 64), columns(16, 16, 100, 64)));
  CHECK(dry::overlap(columns(0, 16, 100, 64), columns(0, 16, 3, 128)));
  CHECK_FALSE(dry::overlap(columns(0, 16, 100, 64), columns(16, 16, 3, 128)));
}

TEST_CASE("range overlap: random ranges against their bytes") {
  std::mt19937 random(7);
  const auto pick = [&](int lo, int hi) { return std::uniform_int_distribution(lo, hi)(random); };
  const auto make = [&] {
    const std::size_t pitches[] = {4, 6, 8, 12, 16, 24};
    auto r = blocks(static_cast<std::uintptr_t>(1000 + pick(0, 40)), static_cast<std::size_t>(pick(1, 6)),
                    pick(1, 5), pitches[pick(0, 5)], pick(1, 3), pitches[pick(0, 5)]);
    if (pick(0, 1) != 0) r.count = 1;
    if (pick(0, 2) == 0) r.stride = r.pitch * static_cast<std::size_t>(pick(1, 6));
    return r;
  };
  int wrong_form = 0, wrong_overlap = 0, wrong_cover = 0, wrong_meets = 0, met = 0, apart = 0, covered = 0,
      missed = 0, wrong_blocks = 0, wrong_rows = 0, rows = 0;
  for (int i = 0; i < 60000; ++i) {
    const auto raw_a = make(), raw_b = make();
    const auto a = dry::normal(raw_a), b = dry::normal(raw_b);
    const auto bytes_a = bytes_of(raw_a), bytes_b = bytes_of(raw_b);
    wrong_form += bytes_of(a) != bytes_a || *bytes_a.rbegin() + 1 != dry::end_of(a);
    const bool truth = share(bytes_a, bytes_b);
    (truth ? met : apart) += 1;
    wrong_overlap += dry::overlap(a, b) != truth;
    bool inside = true;
    for (const auto x : bytes_b) inside = inside && bytes_a.count(x) != 0;
    const bool says = dry::covers(a, b);
    wrong_cover += says && !inside;
    covered += inside;
    missed += inside && !says;
    const auto lo = static_cast<std::uintptr_t>(1000 + pick(0, 80)),
               hi = lo + static_cast<std::uintptr_t>(pick(1, 9));
    const auto first = bytes_a.lower_bound(lo);
    wrong_meets += dry::meets(a, lo, hi) != (first != bytes_a.end() && *first < hi);
    const auto [first_row, last_row] = dry::covered_rows(a, b);
    for (auto row = first_row; row < last_row; ++row)
      for (const auto x : bytes_of(dry::row_of(b, row))) wrong_rows += bytes_a.count(x) == 0;
    rows += first_row < last_row;
    std::set<std::uintptr_t> again;
    dry::each_block(a, [&](const access_range& r) {
      const auto s = bytes_of(r);
      again.insert(s.begin(), s.end());
    });
    wrong_blocks += again != bytes_a;
  }
  CHECK(wrong_form == 0);
  CHECK(wrong_overlap == 0);
  CHECK(wrong_cover == 0);
  CHECK(wrong_meets == 0);
  CHECK(wrong_blocks == 0);
  CHECK(wrong_rows == 0);
  CHECK(rows > 1000);
  CHECK(met > 10000);
  CHECK(apart > 10000);
  CHECK(covered > 1000);
  CHECK(missed < covered / 4);
}
