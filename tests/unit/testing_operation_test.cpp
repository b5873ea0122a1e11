// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/operation.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace pl = plateau;
using namespace plateau::testing;

TEST_CASE("operation: every tagged argument is cut into pieces without holes, plain values are nowhere") {
  float x[100];
  unsigned char scratch[32];
  const auto o =
      operation_of("name", true, pl::in(pl::view<float>{x, 10}), 5, pl::out(pl::tile<float>{x + 20, 3, 4, 7}),
                   pl::inout(pl::tile_batch<float>{x + 50, 2, 20, 2, 3, 5}),
                   pl::host::scratch_argument{{scratch, 32}}, pl::some(pl::view<float>{x, 0}));
  REQUIRE(o.pieces.size() == 1 + 3 + 4 + 1);
  const auto at = [&](std::size_t i) { return reinterpret_cast<float*>(o.pieces[i].begin()) - x; };
  CHECK(at(0) == 0);
  CHECK(o.pieces[0].bytes == 40);
  CHECK(at(2) == 27);
  CHECK(o.pieces[2].argument == 2);
  CHECK(o.pieces[2].offset == 16);
  CHECK(std::string(tag_of(o.pieces[2].mode)) == "out(v)");
  CHECK(at(7) == 75);
  CHECK(o.pieces[7].offset == 36);
  CHECK(std::string(tag_of(o.pieces[7].mode)) == "inout(v)");
  CHECK(std::string(tag_of(o.pieces[8].mode)) == "scratch");
}

TEST_CASE("operation: subtraction agrees with one byte at a time") {
  std::mt19937 random(1);
  const auto below = [&](unsigned n) { return std::size_t{random()} % n; };
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<piece> without;
    std::vector<bool> covered(100), left(100), expected(100);
    for (std::size_t i = below(5); i > 0; --i) {
      const piece p{below(90) + 1, below(10)};
      if (p.bytes == 0) continue;
      without.push_back(p);
      for (std::size_t b = p.address; b < p.end(); ++b) covered[b] = true;
    }
    join(without);
    const piece from{below(60) + 1, below(40), 3, touch::write, 7};
    for (std::size_t b = from.address; b < from.end(); ++b) expected[b] = !covered[b];
    std::vector<piece> rest;
    subtract(from, without, rest);
    for (const piece& p : rest) {
      CHECK(p.bytes > 0);
      CHECK(p.argument == 3);
      CHECK(p.offset == 7 + p.address - from.address);
      for (std::size_t b = p.address; b < p.end(); ++b) left[b] = true;
    }
    CHECK(left == expected);
  }
}
