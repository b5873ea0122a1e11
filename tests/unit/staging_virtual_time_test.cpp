// SPDX-License-Identifier: Apache-2.0
//
// How long a step of a staging pipeline takes in virtual time: with three slots the slowest stage and the
// fill, with two half of all stages where that is more, with one all of them.
#include "support/dry_staging.hpp"

#include <doctest/doctest.h>

namespace pl = plateau;
using pl::index_t, pl::flow, pl::staged;
using support::stage_seconds;

namespace {

// Buckets of 64 MiB of an element of 8 bytes, all of one size.
constexpr index_t bucket_elements = index_t{8} << 20;
using both_ways = support::dry_staging<staged<double, flow::inout>>;

double seconds(index_t buckets, int slots, double compute_bytes, const pl::hardware& h,
               stage_seconds& stages) {
  const both_ways run(buckets * bucket_elements, {bucket_elements, slots}, compute_bytes);
  REQUIRE(run.buckets == buckets);
  stages = run.stages(h);
  return run.seconds(h);
}

} // namespace

TEST_CASE("three slots reach the bound and the fill, two half of all stages, one all of them") {
  const pl::hardware h = support::separate_stages();
  for (const index_t buckets : {1, 2, 5, 26, 100})
    for (const double compute : {0.5, 4.0, 8.0, 12.0, 20.0}) { // bytes: the ways take 8 each
      CAPTURE(buckets);
      CAPTURE(compute);
      stage_seconds s;
      const auto n = static_cast<double>(buckets);
      const double one = seconds(buckets, 1, compute, h, s), two = seconds(buckets, 2, compute, h, s),
                   three = seconds(buckets, 3, compute, h, s), four = seconds(buckets, 4, compute, h, s);
      CHECK(three <= s.bound() * (n + 2) / n * 1.03);
      CHECK(two <= ((n - 1) * s.two_slots() / n + s.all() / n) * 1.03); // the first bucket fills
      CHECK(one >= s.all());
      CHECK(one <= s.all() * 1.03);
      CHECK(four <= three * 1.001);
      CHECK(three <= two * 1.001);
      CHECK(two <= one * 1.001);
      for (const double each : {two, three, four}) CHECK(each >= s.bound());
      // Where all take the same, the third slot is worth a third; beyond that nothing.
      if (compute == 8.0 && buckets == 100) {
        CHECK(two > 1.45 * three);
        CHECK(four > 0.999 * three);
      }
      if (compute == 0.5 && buckets == 100) CHECK(three > 0.97 * two);
    }
}

TEST_CASE("26 buckets of 142,076,000 elements, 16 bytes each: a third slot does not help") {
  // 12 bytes of state both ways, 4 of gradients in; the parameters are on the device.
  using published =
      support::dry_staging<staged<float, flow::in>, staged<float, flow::inout>, staged<float, flow::inout>,
                           staged<float, flow::inout>, staged<std::uint16_t, flow::resident>>;
  constexpr index_t largest = 142'076'000;
  const pl::staging_shape two{largest, 2}, three{largest, 3};
  CHECK(published::pipeline::streamed_bytes_per_element == 16);
  const double gibibytes =
      static_cast<double>(published::pipeline::working_set_of(two).device_bytes()) / 0x1p30;
  CHECK(gibibytes == doctest::Approx(4.234).epsilon(1e-4));
  const published with_two(26 * largest, two, 30), with_three(26 * largest, three, 30);
  const pl::hardware h = pl::h200();
  const stage_seconds s = with_two.stages(h);
  // The update is a fortieth of a way, and both ways share the host's memory: half of all stages is less than
  // what the bytes need there, with any number of slots.
  CHECK(s.compute < 0.03 * s.in);
  CHECK((s.in + s.compute + s.out) / 2 < s.bound());
  CHECK(with_three.seconds(h) >= 0.98 * with_two.seconds(h));
  CHECK(with_two.seconds(h) <= 1.05 * s.bound());
}
