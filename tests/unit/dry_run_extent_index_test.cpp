// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/extent_index.hpp>

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <vector>

namespace dry = plateau::dry;

namespace {
dry::access_range line(std::uintptr_t at, std::size_t width) {
  return {at, width, 1, 0, 1, 0, dry::touch::read};
}
} // namespace

TEST_CASE("extent index: finds what meets an interval, and nothing else") {
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) { return std::uniform_int_distribution(lo, hi)(random); };
  for (int program = 0; program < 50; ++program) {
    dry::extent_index<int> index;
    std::vector<dry::access_range> all;
    std::set<int> there;
    CHECK(index.empty());
    for (int i = 0; i < 200; ++i) {
      const auto r = line(static_cast<std::uintptr_t>(pick(0, 1000)), std::size_t{1} << pick(0, 9));
      index.add(r, i);
      all.push_back(r);
      there.insert(i);
      const auto lo = static_cast<std::uintptr_t>(pick(0, 1500)),
                 hi = lo + static_cast<std::uintptr_t>(pick(1, 64));
      std::set<int> expected, seen;
      for (const int k : there) {
        const auto& x = all[static_cast<std::size_t>(k)];
        if (x.address < hi && dry::end_of(x) > lo) expected.insert(k);
      }
      index.visit(lo, hi, [&](const dry::access_range& where, int k) {
        CHECK(where.address == all[static_cast<std::size_t>(k)].address);
        CHECK(seen.insert(k).second);
        return k % 3 == 0;
      });
      CHECK(seen == expected);
      for (const int k : seen)
        if (k % 3 == 0) there.erase(k);
    }
    std::set<int> left;
    index.each([&](const dry::access_range&, int k) { left.insert(k); });
    CHECK(left == there);
    index.visit(0, 5000, [](const dry::access_range&, int) { return true; });
    CHECK(index.empty());
  }
}
