// SPDX-License-Identifier: Apache-2.0
//
// Memory over time in few steps: maxima of the total and of every tag survive, and so does what lasts.
#include <plateau/trace/memory_steps.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace {

namespace pl = plateau;
using pl::memory_kind;
using pl::tag;

std::size_t slot(tag t) { return static_cast<std::size_t>(t); }

// What was held at a moment, by the steps.
const pl::memory_step& at(const pl::memory_history& h, double moment) {
  const pl::memory_step* found = &h.steps.front();
  for (const pl::memory_step& s : h.steps)
    if (s.at <= moment) found = &s;
  return *found;
}

} // namespace

TEST_CASE("few changes are all there; those of one moment are one step; ranks and pools are apart") {
  pl::trace t;
  t.memory = {{0, memory_kind::device, tag::parameters, 0.0, 100},
              {0, memory_kind::pinned_host, tag::optimizer, 0.5, 7},
              {0, memory_kind::device, tag::workspace, 1.0, 50},
              {0, memory_kind::device, tag::workspace, 2.0, 20}, // half of it becomes dispatch's
              {0, memory_kind::device, tag::dispatch, 2.0, 30},
              {0, memory_kind::device, tag::parameters, 3.0, 0},
              {1, memory_kind::device, tag::parameters, 0.0, 151}};
  const pl::memory_history h = pl::memory_over_time(t, 0, memory_kind::device);
  REQUIRE(h.steps.size() == 4);
  CHECK(h.steps[0].total == 100);
  CHECK(h.steps[1].total == 150);
  CHECK(h.steps[2].at == 2.0);
  CHECK(h.steps[2].total == 150);
  CHECK(h.steps[2].held[slot(tag::dispatch)] == 30);
  CHECK(h.steps[3].total == 50);
  CHECK(h.peak.total == 150);
  CHECK(h.peak.at == 1.0); // the first of equals
  CHECK(pl::memory_over_time(t, 0, memory_kind::pinned_host).peak.held[slot(tag::optimizer)] == 7);
  CHECK(pl::memory_over_time(t, 1, memory_kind::device).peak.total == 151);
  CHECK(pl::memory_over_time(t, 2, memory_kind::device).steps.empty());
  CHECK(pl::rank_of_peak(t) == 1);
}

TEST_CASE("the rank of the peak: the first of equals, by pinned memory where no device memory is") {
  pl::trace t;
  CHECK(pl::rank_of_peak(t) == 0);
  t.memory = {{3, memory_kind::pinned_host, tag::other, 0.0, 5},
              {4, memory_kind::pinned_host, tag::other, 0.0, 9}};
  CHECK(pl::rank_of_peak(t) == 4);
  t.memory.push_back({5, memory_kind::device, tag::other, 0.0, 1});
  t.memory.push_back({6, memory_kind::device, tag::other, 0.0, 1});
  CHECK(pl::rank_of_peak(t) == 5);
}

TEST_CASE("downsampling loses no maximum, and shows a quiet time as it was") {
  // A hundred thousand changes in the first tenth of the time, then a long silence at a low level, then a
  // few.
  constexpr std::size_t moments = 100'000;
  pl::trace t;
  std::uint32_t state = 1;
  const auto random = [&] { return state = state * 1664525u + 1013904223u; };
  std::array<std::size_t, pl::tag_count> now{}, most{};
  std::size_t peak = 0;
  double peak_at = 0;
  for (std::size_t i = 0; i < moments; ++i) {
    const std::size_t k = random() % pl::tag_count;
    // High spikes of one moment each, which nothing but a careful choice keeps.
    now[k] = i == 77'777 ? 5'000'000'000 : i == 33'333 ? 3'999'999'999 : random() % 1'000'000;
    const double moment = 1e-6 * static_cast<double>(i);
    t.memory.push_back({0, memory_kind::device, pl::all_tags[k], moment, now[k]});
    most[k] = std::max(most[k], now[k]);
    std::size_t total = 0;
    for (const std::size_t bytes : now) total += bytes;
    if (total > peak) {
      peak = total;
      peak_at = moment;
    }
    if (now[k] > 1'000'000) { // and back at once
      t.memory.push_back({0, memory_kind::device, pl::all_tags[k], moment + 5e-7, 0});
      now[k] = 0;
    }
  }
  double moment = 0.2;
  for (const tag k : pl::all_tags) t.memory.push_back({0, memory_kind::device, k, moment, 1});
  t.memory.push_back({0, memory_kind::device, tag::other, 1.0, 11});

  for (const std::size_t limit : {std::size_t{100}, std::size_t{2000}}) {
    const pl::memory_history h = pl::memory_over_time(t, 0, memory_kind::device, limit);
    CHECK(h.steps.size() <= limit);
    CHECK(h.steps.size() >= (limit == 100 ? 10 : 150)); // the busy tenth has a tenth of the stretches
    CHECK(h.peak.total == peak);
    CHECK(h.peak.at == peak_at);
    std::array<std::size_t, pl::tag_count> seen{};
    std::size_t highest = 0;
    for (std::size_t i = 0; i < h.steps.size(); ++i) {
      highest = std::max(highest, h.steps[i].total);
      for (std::size_t k = 0; k < pl::tag_count; ++k) seen[k] = std::max(seen[k], h.steps[i].held[k]);
      if (i != 0) CHECK(h.steps[i].at > h.steps[i - 1].at);
    }
    CHECK(highest == peak);
    CHECK(seen == most);
    CHECK(at(h, 0.5).total == pl::tag_count); // the silence
    CHECK(h.steps.front().at == 0);
    CHECK(h.steps.back().at == 1.0);
    CHECK(h.steps.back().held[slot(tag::other)] == 11);
  }
}
