// SPDX-License-Identifier: Apache-2.0
#include <plateau/majority.hpp>

#include <doctest/doctest.h>

#include <vector>

namespace {
int outlier(const std::vector<int>& v) {
  return plateau::first_outlier(static_cast<int>(v.size()),
                                [&](int r) { return v[static_cast<std::size_t>(r)]; });
}
} // namespace

TEST_CASE("majority: the lowest rank outside the largest group of equals") {
  CHECK(outlier({}) == -1);
  CHECK(outlier({7}) == -1);
  CHECK(outlier({7, 7, 7}) == -1);
  CHECK(outlier({7, 7, 8, 7}) == 2);
  CHECK(outlier({8, 7, 7, 7}) == 0);
  CHECK(outlier({1, 2, 3, 2}) == 0);
  CHECK(outlier({1, 2, 3, 3, 3}) == 0);
}

TEST_CASE("majority: of two equal groups the one of the lowest rank is in the right") {
  CHECK(outlier({1, 2}) == 1);
  CHECK(outlier({1, 2, 2, 1}) == 1);
}
