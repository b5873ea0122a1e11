// SPDX-License-Identifier: Apache-2.0
//
// Views: bounds of sub-views, 64-bit offsets (on pointers that are never followed), and empty views without
// memory.
#include <plateau/view.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace {

namespace pl = plateau;
using pl::index_t;

constexpr index_t most = std::numeric_limits<index_t>::max();

// An address for arithmetic alone: 4 KiB up, far from wrapping round, and never read.
template <class T> T* fake() { return reinterpret_cast<T*>(std::uintptr_t{4096}); }
template <class T> std::uintptr_t address(T* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST_CASE("view::sub accepts what lies inside and nothing else") {
  std::array<float, 8> a{};
  const pl::view<float, pl::host_space> v{a.data(), 8};
  CHECK(v.sub(0, 8).data() == a.data());
  CHECK(v.sub(3, 5).data() == a.data() + 3);
  CHECK(v.sub(3, 5).size() == 5);
  CHECK(v.sub(8, 0).size() == 0);
  CHECK(v.bytes() == 32);
  CHECK_THROWS_AS(v.sub(9, 0), pl::config_error);
  CHECK_THROWS_AS(v.sub(3, 6), pl::config_error);
  CHECK_THROWS_AS(v.sub(-1, 2), pl::config_error);
  CHECK_THROWS_AS(v.sub(2, -1), pl::config_error);
  CHECK_THROWS_WITH_AS(v.sub(3, 6), doctest::Contains("[3, 3 + 6) lies outside an extent of 8"),
                       pl::config_error);
}

TEST_CASE("bounds are checked without a sum that overflows") {
  const pl::view<char> v{fake<char>(), 100};
  CHECK_THROWS_AS(v.sub(50, most), pl::config_error);
  CHECK_THROWS_AS(v.sub(most, most), pl::config_error);
  CHECK_THROWS_AS(v.sub(most, 1), pl::config_error);
  CHECK_THROWS_AS(v.sub(std::numeric_limits<index_t>::min(), 1), pl::config_error);
  const pl::tile<char> t{fake<char>(), 10, 10, 10};
  CHECK_THROWS_AS(t.row_block(5, most), pl::config_error);
  CHECK_THROWS_AS(t.column_block(most, most), pl::config_error);
  CHECK_THROWS_AS(pl::as_matrix(v, index_t{1} << 32, index_t{1} << 32), pl::config_error); // product: 2^64
  CHECK_THROWS_AS(pl::as_matrix(v, most, 2), pl::config_error);
}

constexpr int corner_of_a_block() {
  int a[6] = {0, 1, 2, 3, 4, 5};
  const auto v = pl::view<int, pl::host_space>{a, 6}.sub(0, 6);
  return pl::as_matrix(v, 2, 3).column_block(1, 2)(1, 1);
}

TEST_CASE("sub-views are usable in constant expressions") { static_assert(corner_of_a_block() == 5); }

TEST_CASE("D9: 912,000 rows of 7,168 columns have 64-bit offsets") {
  constexpr index_t rows = 912'000, cols = 7'168; // 6.5e9 elements
  const pl::tile<std::uint16_t> t{fake<std::uint16_t>(), rows, cols, cols};
  CHECK(t.bytes() == std::size_t{13'074'432'000});
  CHECK(address(t.row(rows - 1)) - address(t.p) == std::uintptr_t{13'074'417'664});
  CHECK(address(&t(rows - 1, cols - 1)) - address(t.p) == std::uintptr_t{13'074'431'998});
  const auto tail = t.row_block(rows - 2, 2);
  CHECK(address(tail.p) - address(t.p) == std::uintptr_t{13'074'403'328});
  CHECK(pl::as_row(t).size() == index_t{6'537'216'000});
  const auto last = pl::as_row(t).sub(index_t{6'537'215'999}, 1);
  CHECK(address(last.p) - address(t.p) == std::uintptr_t{13'074'431'998});
  const auto again = pl::as_matrix(pl::as_row(t), rows, cols);
  CHECK(again.rows == rows);
  CHECK_THROWS_AS(pl::as_matrix(pl::as_row(t), rows + 1, cols), pl::config_error);
}

TEST_CASE("V5: 256,000 x 12,288 is more than 2^31 elements") {
  constexpr index_t vocabulary = 256'000, hidden = 12'288;
  static_assert(vocabulary * hidden > std::numeric_limits<std::int32_t>::max());
  const pl::tile<float> w{fake<float>(), vocabulary, hidden, hidden};
  CHECK(w.bytes() == std::size_t{12'582'912'000});
  CHECK(address(&w(vocabulary - 1, hidden - 1)) - address(w.p) == std::uintptr_t{12'582'911'996});
  const auto right = w.row_block(vocabulary / 2, vocabulary / 2).column_block(hidden / 2, hidden / 2);
  CHECK(address(right.p) - address(w.p) == std::uintptr_t{6'291'480'576});
  CHECK(right.ld == hidden);

  const pl::tile_batch<float> heads{fake<float>(), 3, vocabulary * hidden, vocabulary, hidden, hidden};
  CHECK(address(heads[2].p) - address(heads.p) == std::uintptr_t{25'165'824'000});
  CHECK(heads.bytes() == std::size_t{37'748'736'000});
}

TEST_CASE("D3: null is legal when empty") {
  const pl::view<float> v{};
  CHECK(v.sub(0, 0).data() == nullptr);
  CHECK(v.bytes() == 0);
  CHECK_THROWS_AS(v.sub(0, 1), pl::config_error);

  const pl::tile<float> wide{nullptr, 0, 7, 7};
  CHECK(wide.row_block(0, 0).p == nullptr);
  CHECK(wide.column_block(3, 4).p == nullptr);
  CHECK(pl::as_row(wide).size() == 0);
  const pl::tile<float> tall{nullptr, 7, 0, 5};
  CHECK(tall.row_block(3, 4).p == nullptr); // no offset is added to null
  CHECK(tall.bytes() == 0);
  CHECK(pl::as_row(tall).size() == 0); // nothing lies between its rows
  CHECK(pl::as_matrix(v, 0, 9).cols == 9);
  CHECK(pl::as_matrix(v, 9, 0).rows == 9);

  const pl::tile_batch<float> batch{nullptr, 2, 0, 4, 0, 5};
  CHECK(batch.row_block(1, 3).p == nullptr);
  CHECK(batch[1].p == nullptr);
}

TEST_CASE("blocks of tiles and batches keep the pitch") {
  std::array<int, 24> a{};
  for (int i = 0; i < 24; ++i) a[static_cast<std::size_t>(i)] = i;
  const pl::tile_batch<int, pl::host_space> b{a.data(), 2, 12, 3, 4, 4}; // (2, 3, 4)
  CHECK(b[1](2, 3) == 23);
  const auto inner = b.row_block(1, 2).column_block(2, 2);
  CHECK(inner[0](0, 0) == 6);
  CHECK(inner[1](1, 1) == 23);
  CHECK(inner.bytes() == 2 * 2 * 2 * sizeof(int));
  CHECK_THROWS_AS(b.row_block(2, 2), pl::config_error);
  CHECK_THROWS_AS(b.column_block(4, 1), pl::config_error);
  CHECK_THROWS_AS(pl::as_row(inner[0]), pl::config_error);
  CHECK(pl::as_row(inner[0].row_block(1, 1))[0] == 10); // one row is always contiguous
}

TEST_CASE("views convert to views of const, never back, never to another space") {
  using writable = pl::view<float>;
  static_assert(std::is_convertible_v<writable, pl::view<const float>>);
  static_assert(!std::is_convertible_v<pl::view<const float>, writable>);
  static_assert(!std::is_convertible_v<writable, pl::view<const float, pl::host_space>>);
  static_assert(std::is_convertible_v<pl::tile<float>, pl::tile<const float>>);
  static_assert(!std::is_convertible_v<pl::tile<const float>, pl::tile<float>>);
  static_assert(std::is_convertible_v<pl::tile_batch<float>, pl::tile_batch<const float>>);
  static_assert(pl::is_view<writable> && pl::is_view<pl::tile<int>> && !pl::is_view<float*>);
  const pl::tile<const float> t = pl::tile<float>{fake<float>(), 2, 3, 4};
  CHECK((t.rows == 2 && t.cols == 3 && t.ld == 4));
}

} // namespace
