// SPDX-License-Identifier: Apache-2.0
#include <plateau/host/split_group.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace host = plateau::host;

TEST_CASE("split group: members by key, then by rank; parts by color") {
  // color, key, offer
  const std::vector<std::int64_t> all{7, 1, 3, -1, 0, 9, 7, 0, 2, 2, 5, 1, 7, 1, 0};
  const auto of = [&](int rank) { return host::agree_on_split(11, rank, all); };
  CHECK(of(0).members == std::vector<int>{2, 0, 4});
  CHECK(of(4).members == of(0).members);
  CHECK(of(0).part == 1);
  CHECK(of(3).part == 0);
  CHECK(of(3).members == std::vector<int>{3});
  for (int r = 0; r < 5; ++r) {
    CHECK(of(r).parts == 2);
    CHECK(of(r).offer == 9);
    CHECK(of(r).sequence == 11);
  }
  CHECK(of(1).members.empty());
  CHECK(of(1).color == -1);
}
TEST_CASE("split group: nobody wants a part") {
  const std::vector<std::int64_t> all{-1, 0, 0, -5, 0, 0};
  CHECK(host::agree_on_split(0, 1, all).parts == 0);
  CHECK(host::agree_on_split(0, 1, all).members.empty());
}
