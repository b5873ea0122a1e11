// SPDX-License-Identifier: Apache-2.0
//
// The check of scratch: what is large enough and aligned passes, what is not is refused with numbers, the
// rank and the line.
#include <plateau/scratch.hpp>

#include <doctest/doctest.h>

namespace {

namespace pl = plateau;

alignas(pl::scratch_alignment) unsigned char bytes[64];

TEST_CASE("scratch of the stated size, or more, passes") {
  CHECK_NOTHROW(pl::check_scratch("scan", 64, {bytes, 64}));
  CHECK_NOTHROW(pl::check_scratch("scan", 16, {bytes + 16, 48}));
  CHECK_NOTHROW(pl::check_scratch("scan", 0, {}));
  CHECK_NOTHROW(pl::check_scratch("scan", 0, {bytes + 1, 3})); // nothing is needed: anything will do
}

TEST_CASE("too little, or not aligned, is refused") {
  CHECK_THROWS_WITH_AS(
      pl::check_scratch("scan", 65, {bytes, 64}, {"model.hpp", 7}, "rank 3"),
      "plateau: rank 3: scan: needs 65 bytes of scratch, got 64: ask its scratch_bytes first at model.hpp:7",
      pl::config_error);
  CHECK_THROWS_WITH_AS(pl::check_scratch("scan", 16, {bytes + 20, 40}),
                       "plateau: scan: its scratch begins 4 bytes behind a multiple of 16: cut scratch at "
                       "multiples of that",
                       pl::config_error);
}

} // namespace
