// SPDX-License-Identifier: Apache-2.0
//
// Lists of an exchange: bytes and addresses as the views say, rows only where they are adjacent.
#include <plateau/exchange.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace {

namespace pl = plateau;

TEST_CASE("a view is sent and received as its bytes") {
  std::array<double, 5> a{};
  const pl::view<double> v{a.data(), 5};
  const pl::send_op s = pl::send_to(3, v.sub(1, 4));
  CHECK(s.p == a.data() + 1);
  CHECK(s.bytes == 32);
  CHECK(s.peer == 3);
  const pl::receive_op r = pl::receive_from(2, v);
  CHECK(r.p == a.data());
  CHECK(r.bytes == 40);
  CHECK(r.peer == 2);
  CHECK(pl::send_to(0, pl::view<const double>{a.data(), 5}).bytes == 40);
}

TEST_CASE("whole rows travel; columns of a wider matrix do not") {
  std::array<float, 24> a{};
  const pl::tile<float> t{a.data(), 4, 6, 6};
  CHECK(pl::send_to(1, t.row_block(1, 2)).p == a.data() + 6);
  CHECK(pl::send_to(1, t.row_block(1, 2)).bytes == 48);
  CHECK(pl::receive_from(1, t).bytes == 96);
  CHECK_THROWS_AS(pl::send_to(1, t.column_block(0, 3)), pl::config_error);
  CHECK_THROWS_AS(pl::receive_from(1, t.column_block(0, 3)), pl::config_error);
  CHECK(pl::send_to(1, t.column_block(2, 3).row_block(1, 1)).bytes == 12); // one row
}

std::size_t bytes_of(pl::send_list list) {
  std::size_t bytes = 0;
  for (const pl::send_op& s : list) bytes += s.bytes;
  return bytes;
}

TEST_CASE("a list is written in braces, or is a container of the caller's") {
  const pl::send_op one{nullptr, 1, 0}, two{nullptr, 2, 1};
  CHECK(bytes_of({}) == 0);
  CHECK(bytes_of({one}) == 1);
  CHECK(bytes_of({one, two}) == 3);
  CHECK(bytes_of({{nullptr, 5, 1}}) == 5);
  std::vector<pl::send_op> ops{one, two, two};
  const std::array<pl::send_op, 2> fixed{one, one};
  const pl::send_op plain[]{two, two};
  CHECK(bytes_of(ops) == 5);
  CHECK(bytes_of(fixed) == 2);
  CHECK(bytes_of(plain) == 4);
  CHECK(bytes_of(std::span<const pl::send_op>(ops).subspan(1)) == 4);
  CHECK(bytes_of(std::span<pl::send_op>(ops)) == 5);
  const pl::send_list list = ops;
  CHECK(list.size() == 3);
  CHECK(list[2].bytes == 2);
  CHECK(bytes_of(list) == 5);
  static_assert(!std::is_convertible_v<std::vector<pl::receive_op>, pl::send_list>);
}

TEST_CASE("D3: nothing can be sent, from null as well") {
  CHECK(pl::send_to(0, pl::view<float>{}).bytes == 0);
  CHECK(pl::receive_from(0, pl::tile<float>{nullptr, 0, 8, 8}).bytes == 0);
  CHECK(pl::send_to(0, pl::tile<float>{nullptr, 8, 0, 16}).bytes == 0);
}

TEST_CASE("D9: 912,000 rows of 7,168 columns in one message") {
  auto* p = reinterpret_cast<std::uint16_t*>(std::uintptr_t{4096});
  CHECK(pl::send_to(0, pl::tile<std::uint16_t>{p, 912'000, 7'168, 7'168}).bytes ==
        std::size_t{13'074'432'000});
}

} // namespace
