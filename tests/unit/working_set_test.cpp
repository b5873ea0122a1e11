// SPDX-License-Identifier: Apache-2.0
//
// Working sets: exact bytes in constant expressions, overlay against together, and sums that refuse to
// overflow.
#include <plateau/working_set.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::memory_kind;
using pl::tag;

constexpr index_t most_elements = std::numeric_limits<index_t>::max();

// As an operator states its promise.
constexpr pl::working_set loss_set(index_t tokens, index_t hidden) {
  pl::working_set s(tag::vocabulary);
  s.device<float>("tile", tokens * 10).device<std::uint16_t>("moving rows", tokens * hidden);
  s.pinned<std::int64_t>("counts", 3);
  return s;
}

TEST_CASE("a promise can be read in a constant expression, line by line") {
  constexpr pl::working_set s = loss_set(100, 7);
  static_assert(s.device_bytes() == 4096 + 1536); // 4000 and 1400, in parts of 256
  static_assert(s.pinned_bytes() == 256);
  static_assert(s.purpose() == tag::vocabulary);
  static_assert(s.end() - s.begin() == 3);
  CHECK(std::string(s.begin()[1].what) == "moving rows");
  CHECK(s.begin()[1].bytes == 1400);
  CHECK(s.begin()[2].kind == memory_kind::pinned_host);
}

TEST_CASE("an empty set and empty lines need nothing") {
  constexpr pl::working_set none(tag::other);
  static_assert(none.device_bytes() == 0 && none.pinned_bytes() == 0 && none.begin() == none.end());
  pl::working_set s(tag::other);
  s.device<double>("nothing", 0);
  CHECK(s.device_bytes() == 0);
  CHECK(s.end() - s.begin() == 1);
}

TEST_CASE("a set takes in the lines of another, under its own tag") {
  pl::working_set inner(tag::dispatch), outer(tag::activations);
  inner.device<char>("slot", 1000).pinned<char>("counts", 10);
  outer.device<char>("rows", 1).add(inner);
  CHECK(outer.purpose() == tag::activations);
  CHECK(outer.device_bytes() == 256 + 1024); // each line rounded up
  CHECK(outer.pinned_bytes() == 256);
  REQUIRE(outer.end() - outer.begin() == 3);
  CHECK(std::string(outer.begin()[2].what) == "counts");
  outer.add(outer);
  CHECK(outer.end() - outer.begin() == 6);
  CHECK(outer.device_bytes() == 2 * (256 + 1024));
  while (outer.end() - outer.begin() < 63) outer.device<char>("line", 1);
  CHECK_THROWS_WITH_AS(outer.add(inner), doctest::Contains("counts"), pl::config_error);
}

TEST_CASE("overlay takes the larger of each space, together the sum") {
  constexpr pl::working_set a = loss_set(100, 7); // 5632 and 256
  constexpr pl::working_set b = [] {
    pl::working_set s(tag::dispatch);
    s.device<char>("slots", 1000).pinned<char>("staging", 5000);
    return s;
  }(); // 1024 and 5120
  static_assert(pl::overlay(a, b).device_bytes == 5632 && pl::overlay(a, b).pinned_bytes == 5120);
  static_assert(pl::together(a, b).device_bytes == 6656 && pl::together(a, b).pinned_bytes == 5376);
  static_assert(pl::overlay(a).device_bytes == a.device_bytes());
  static_assert(pl::overlay().device_bytes == 0 && pl::together().pinned_bytes == 0);
  // They nest: an expert inside a dispatch, either of two losses.
  static_assert(pl::overlay(pl::together(a, b), a).device_bytes == 6656);
  static_assert(pl::together(pl::overlay(a, b), b).device_bytes == 6656);
  CHECK(pl::reserve(a).device_bytes == 5632);
}

TEST_CASE("bytes beyond 32 bits are exact") {
  constexpr pl::working_set s = [] {
    pl::working_set each(tag::dispatch);
    each.device<std::uint16_t>("rows", index_t{912'000} * 7'168);
    return each;
  }();
  static_assert(s.device_bytes() == 13'074'432'000);
  CHECK(pl::together(s, s, s).device_bytes == std::size_t{39'223'296'000});
}

TEST_CASE("impossible lines are refused by name, and leave the set as it was") {
  pl::working_set s(tag::other);
  s.device<float>("first", 10);
  CHECK_THROWS_WITH_AS(s.device<float>("slots", -1), doctest::Contains("'slots'"), pl::config_error);
  CHECK_THROWS_AS(s.device<float>("slots", most_elements / 4 + 1), pl::config_error);
  CHECK_THROWS_WITH_AS(s.device<char>("all there is", most_elements), doctest::Contains("'all there is'"),
                       pl::config_error);
  CHECK_THROWS_AS(s.add("huge", memory_kind::device, std::numeric_limits<std::size_t>::max()),
                  pl::config_error);
  CHECK(s.device_bytes() == 256);
  CHECK(s.end() - s.begin() == 1);
}

TEST_CASE("a sum that reaches the end of 64 bits admits no further byte") {
  constexpr std::size_t most = std::size_t{1} << 63; // the first size that no buffer can have
  pl::working_set s(tag::other);
  s.add("nearly everything", memory_kind::device, most - 256);
  CHECK(s.device_bytes() == most - 256);
  CHECK_THROWS_AS(s.add("one more", memory_kind::device, 1), pl::config_error);
  CHECK_THROWS_AS(s.add("rounded up", memory_kind::device, most - 255), pl::config_error);
  s.add("another space", memory_kind::pinned_host, 1); // each space has its own sum
  CHECK(s.pinned_bytes() == 256);

  pl::working_set one(tag::other);
  one.add("one more", memory_kind::device, 1);
  CHECK_THROWS_AS(pl::together(s, one), pl::config_error);
  CHECK_THROWS_AS(pl::together(s, s, s), pl::config_error); // three times 2^63 would wrap round
  CHECK(pl::overlay(s, one).device_bytes == most - 256);
}

TEST_CASE("a set is full after its capacity, and says which line was too much") {
  pl::working_set s(tag::other);
  for (std::size_t i = 0; i < pl::working_set::capacity; ++i) s.device<char>("line", 1);
  CHECK(s.device_bytes() == pl::working_set::capacity * 256);
  CHECK_THROWS_WITH_AS(s.device<char>("last straw", 1), doctest::Contains("'last straw'"), pl::config_error);
}

} // namespace
