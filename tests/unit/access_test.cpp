// SPDX-License-Identifier: Apache-2.0
//
// Accesses: what each tag means, what a kernel receives for it, and that an operation knows the line of its
// call.
#include <plateau/access.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstring>

namespace {

namespace pl = plateau;

template <class Arg> constexpr pl::access_mode mode_of(const Arg&) { return Arg::mode; }

TEST_CASE("tags say what is read and what is written") {
  using enum pl::access_mode;
  static_assert(pl::reads(read) && !pl::writes(read));
  static_assert(!pl::reads(write) && pl::writes(write));
  static_assert(!pl::reads(partial) && pl::writes(partial));
  static_assert(pl::reads(update) && pl::writes(update));
  static_assert(pl::reads(accumulate) && pl::writes(accumulate));

  const pl::view<float> v{};
  const pl::view<int> counts{};
  CHECK(mode_of(pl::in(v)) == read);
  CHECK(mode_of(pl::out(v)) == write);
  CHECK(mode_of(pl::some(v)) == partial);
  CHECK(mode_of(pl::inout(v)) == update);
  CHECK(mode_of(pl::accumulates(counts)) == accumulate);
}

TEST_CASE("in arrives as a view of const, the others as they are") {
  using view = pl::view<float>;
  using tile = pl::tile<float>;
  using batch = pl::tile_batch<float>;
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::in(view{}))>, pl::view<const float>>);
  static_assert(
      std::is_same_v<pl::unwrapped<decltype(pl::in(pl::view<const float>{}))>, pl::view<const float>>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::in(tile{}))>, pl::tile<const float>>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::in(batch{}))>, pl::tile_batch<const float>>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::out(tile{}))>, tile>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::some(view{}))>, view>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::inout(batch{}))>, batch>);
  static_assert(std::is_same_v<pl::unwrapped<decltype(pl::accumulates(pl::view<int>{}))>, pl::view<int>>);

  std::array<float, 3> a{1, 2, 3};
  const pl::view<float, pl::host_space> v{a.data(), 3};
  CHECK(pl::unwrap(pl::in(v)).data() == a.data());
  CHECK(pl::unwrap(pl::inout(v)).size() == 3);
}

TEST_CASE("plain values go through unchanged") {
  struct schedule {
    double rate;
    pl::index_t step;
  };
  static_assert(std::is_same_v<pl::unwrapped<int>, int>);
  static_assert(std::is_same_v<pl::unwrapped<const double&>, double>);
  CHECK(pl::unwrap(schedule{0.5, 7}).step == 7);
  static_assert(pl::is_arg<decltype(pl::in(pl::view<float>{}))> && !pl::is_arg<pl::view<float>> &&
                !pl::is_arg<int>);
}

struct stream {};
int line_of_call(pl::on<stream> s) { return s.line; }
const char* file_of_call(pl::on<stream> s) { return s.file; }

TEST_CASE("an operation learns the line that calls it, not that of its own declaration") {
  stream s;
  const int here = __LINE__ + 1;
  CHECK(line_of_call(s) == here);
  CHECK(std::strstr(file_of_call(s), "access_test.cpp") != nullptr);
}

} // namespace
