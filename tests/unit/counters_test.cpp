// SPDX-License-Identifier: Apache-2.0
//
// Counters: the difference of two readings, field by field.
#include <plateau/counters.hpp>

#include <doctest/doctest.h>

namespace {

namespace pl = plateau;

TEST_CASE("a difference covers every counter") {
  constexpr pl::counters before{1, 2, 3, 4, 5, 6, 7, 8};
  constexpr pl::counters after{101, 202, 303, 404, 505, 606, 707, 808};
  constexpr pl::counters d = after - before;
  CHECK(d.matrix_flops == 100);
  CHECK(d.matrix_products == 200);
  CHECK(d.launches == 300);
  CHECK(d.copied_bytes == 400);
  CHECK(d.sent_bytes == 500);
  CHECK(d.exchanges == 600);
  CHECK(d.host_round_trips == 700);
  CHECK(d.host_exchanges == 800);
  static_assert(sizeof(pl::counters) ==
                8 * sizeof(std::uint64_t)); // a new counter belongs into the difference
}

TEST_CASE("counters start at zero and hold the work of a whole training run") {
  constexpr pl::counters none{};
  CHECK(none.matrix_flops == 0);
  CHECK(none.host_exchanges == 0);
  pl::counters run;
  run.matrix_flops = 2ull * 4096 * 12'288 * 256'000; // one product: 2.6e13
  CHECK((run - none).matrix_flops == 25'769'803'776'000ull);
}

} // namespace
