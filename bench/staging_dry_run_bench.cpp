// SPDX-License-Identifier: Apache-2.0
//
// Staging without data, in virtual time: how near to the slowest stage one to four slots come, on a machine
// whose stages do not disturb one another and on the H200 preset; which bucket is large enough; and why a
// third slot does not help where the published measurement found that it does not. Nothing here is measured:
// the same program gives the same figures on any machine.
#include "table.hpp"

#include "support/dry_staging.hpp"

#include <string>
#include <utility>

namespace {

namespace pl = plateau;
using pl::index_t, pl::flow, pl::staged;
using support::dry_staging, support::stage_seconds;

bench::spread one(double x) { return {x, x, x, x, 0}; }
constexpr double mebibyte = 1024.0 * 1024;

using both_ways = dry_staging<staged<double, flow::inout>>;
// AdamW: gradients in, master and both moments both ways, parameters in bf16 stay on the device. The update
// reads 16 bytes and writes 14.
using adamw = dry_staging<staged<float, flow::in>, staged<float, flow::inout>, staged<float, flow::inout>,
                          staged<float, flow::inout>, staged<std::uint16_t, flow::resident>>;
constexpr double adamw_bytes = 30;

template <class Run>
void against_limits(bench::table& table, const Run& run, int slots, const pl::hardware& h,
                    const std::string& name) {
  const stage_seconds s = run.stages(h);
  const auto n = static_cast<double>(run.buckets);
  const double seconds = run.seconds(h), fill = (n + 2) / n;
  table.row(fmt::format("{}, {} slot{}: time / bound", name, slots, slots == 1 ? "" : "s"),
            one(seconds / s.bound()));
  if (slots == 2)
    table.row("  time / (the larger of bound and half of all stages, and the fill)",
              one(seconds / ((n - 1) * s.two_slots() / n + s.all() / n)), bench::goal::at_most(1.03));
  if (slots >= 3)
    table.row("  time / (bound x (buckets + 2) / buckets)", one(seconds / (s.bound() * fill)),
              bench::goal::at_most(1.03));
}

void separate(bench::table& table) {
  const pl::hardware h = support::separate_stages();
  constexpr index_t bucket = index_t{8} << 20;
  for (const index_t buckets : {8, 26, 100})
    for (const auto& [name, bytes] :
         {std::pair{"1:1:1", 8.0}, std::pair{"1:0.1:1", 0.8}, std::pair{"1:2:1", 16.0}}) {
      if (buckets != 26 && bytes != 8.0) continue;
      for (int slots = 1; slots <= 4; ++slots)
        against_limits(table, both_ways(buckets * bucket, {bucket, slots}, bytes), slots, h,
                       fmt::format("in:compute:out {}, {} buckets", name, buckets));
    }
}

void on_h200(bench::table& table, const pl::hardware& h) {
  constexpr index_t elements = 870'000'000; // 35B parameters over 40 devices
  const double state = static_cast<double>(elements) * 12;
  for (int slots = 1; slots <= 4; ++slots)
    against_limits(table, adamw(elements, adamw::pipeline::shape_for(elements, 0, slots), adamw_bytes), slots,
                   h, "H200, AdamW, 870M elements, default buckets");
  for (const int slots : {2, 3})
    for (const double size : {1.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
      const auto shape =
          adamw::pipeline::shape_for(elements, static_cast<std::size_t>(size * mebibyte), slots);
      const adamw run(elements, shape, adamw_bytes);
      const double bytes = static_cast<double>(adamw::pipeline::working_set_of(shape).device_bytes());
      table.row(fmt::format("{} slots, buckets of {} MiB: bound / time", slots, size),
                one(run.stages(h).bound() / run.seconds(h)),
                size * slots <= 128 && size >= 32 ? bench::goal::at_least(0.97) : bench::goal{});
      table.row("  device memory, MiB", one(bytes / mebibyte),
                size * slots <= 128 && size >= 32 ? bench::goal::at_most(128) : bench::goal{});
      double worst = 0;
      for (std::uint64_t seed = 1; seed <= 20; ++seed) worst = std::max(worst, run.seconds(h, {seed, 0.3}));
      table.row("  costs +-30%, worst of 20 seeds: time / without", one(worst / run.seconds(h)));
    }
  table.row("state on the device instead, MiB", one(state / mebibyte));
}

void published(bench::table& table, const pl::hardware& h) {
  constexpr index_t largest = 142'076'000;
  double of_two = 0;
  for (int slots = 1; slots <= 4; ++slots) {
    const adamw run(26 * largest, {largest, slots}, adamw_bytes);
    const double seconds = run.seconds(h);
    table.row(
        fmt::format("26 buckets of 142.076M elements, 16 B each, {} slot{}: s", slots, slots == 1 ? "" : "s"),
        one(seconds));
    if (slots == 2) {
      const stage_seconds s = run.stages(h);
      of_two = seconds;
      table.row(
          "  slots, GiB (published 4.234)",
          one(static_cast<double>(adamw::pipeline::working_set_of({largest, 2}).device_bytes()) / 0x1p30));
      table.row("  way in alone, s", one(s.in));
      table.row("  updates alone, s", one(s.compute));
      table.row("  way out alone, s", one(s.out));
      table.row("  half of all three, s: what two slots need", one((s.in + s.compute + s.out) / 2));
      table.row("  both ways through the link, s", one(s.link));
      table.row("  both ways through an eighth of the host's memory, s: the bound", one(s.host_memory));
    }
    if (slots == 3)
      table.row("  with three slots / with two (published 1.951 / 1.930 = 1.011)", one(seconds / of_two),
                bench::goal::at_least(0.98));
  }
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  const pl::hardware h = pl::h200();
  separate(table);
  on_h200(table, h);
  published(table, h);
}
