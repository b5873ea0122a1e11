// SPDX-License-Identifier: Apache-2.0
//
// Axes: units that read well, round ticks that are few enough.
#include <plateau/trace/svg_scale.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace detail = plateau::detail;

TEST_CASE("quantities in the unit that suits them") {
  CHECK(detail::text_of_bytes(0) == "0 B");
  CHECK(detail::text_of_bytes(1023) == "1023 B");
  CHECK(detail::text_of_bytes(1536) == "1.5 KiB");
  CHECK(detail::text_of_bytes(std::size_t{64} << 30) == "64 GiB");
  CHECK(detail::text_of_bytes(13'249'974'272) == "12.34 GiB");
  CHECK(detail::text_of_bytes(std::size_t{3} << 40) == "3 TiB");
  CHECK(detail::text_of_seconds(0) == "0 s");
  CHECK(detail::text_of_seconds(2.5) == "2.5 s");
  CHECK(detail::text_of_seconds(0.1548) == "154.8 ms");
  CHECK(detail::text_of_seconds(3e-6) == "3 \xc2\xb5s");
  CHECK(detail::text_with_commas(7) == "7");
  CHECK(detail::text_with_commas(123) == "123");
  CHECK(detail::text_with_commas(1234) == "1,234");
  CHECK(detail::text_with_commas(1234567890) == "1,234,567,890");
}

TEST_CASE("ticks are round, within the axis, and about as many as asked for") {
  const detail::unit gib = detail::unit_of_bytes(0x1p30);
  CHECK(detail::ticks(60 * 0x1p30, gib, 6) ==
        std::vector<double>{0, 10 * 0x1p30, 20 * 0x1p30, 30 * 0x1p30, 40 * 0x1p30, 50 * 0x1p30, 60 * 0x1p30});
  CHECK(detail::ticks(4.2 * 0x1p30, gib, 1.9) == std::vector<double>{0, 2.5 * 0x1p30}); // not 0 alone
  CHECK(detail::ticks(0, gib, 6) == std::vector<double>{0});
  CHECK(detail::ticks(std::nan(""), gib, 6) == std::vector<double>{0});
  CHECK(detail::ticks(1, detail::unit_of_bytes(1), 5) == std::vector<double>{0, 1}); // bytes are whole
  for (double end = 1.1e-9; end < 1e16; end *= 3.7) {
    const auto at = detail::ticks(end, detail::unit_of_seconds(end), 5);
    CHECK(at.size() >= 2);
    CHECK(at.size() <= 7);
    CHECK(at.back() <= end * 1.000001);
  }
}
