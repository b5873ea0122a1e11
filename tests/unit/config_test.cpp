// SPDX-License-Identifier: Apache-2.0
//
// The promises of config.hpp that a program can observe: the width of index_t and the versioned namespace.
#include <plateau/config.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <type_traits>

namespace {

PLATEAU_HD constexpr plateau::index_t twice(plateau::index_t n) { return 2 * n; }

TEST_CASE("index_t counts past 32 bits and goes below zero") {
  static_assert(std::is_same_v<plateau::index_t, std::int64_t>);
  CHECK(twice(std::numeric_limits<std::int32_t>::max()) == 4294967294);
  CHECK(twice(-1) == -2);
}

TEST_CASE("names live in an inline namespace, so that two versions can be told apart by the linker") {
  static_assert(std::is_same_v<plateau::index_t, plateau::v0::index_t>);
  CHECK(PLATEAU_VERSION_MAJOR == 0);
}

} // namespace
