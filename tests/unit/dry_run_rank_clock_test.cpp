// SPDX-License-Identifier: Apache-2.0
//
// Random programs of several ranks: the timeline keeps every bound that holds whatever the order, and agrees
// with a simulation in tiny steps that shares no code with it but the costs.
#include <plateau/dry_run/rank_clock.hpp>
#include <plateau/dry_run/solve.hpp>

#include "support/rank_programs.hpp"
#include "support/tiny_steps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using plateau_test::program_writer;

// Ranks do different work, and issue exchanges and host exchanges in one order, so that there is no deadlock.
std::vector<program_writer> random_programs(std::mt19937& random, int ranks, int actions) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<program_writer> list;
  std::vector<int> everyone;
  for (int r = 0; r < ranks; ++r) everyone.push_back(r);
  const int streams = 2 + below(3);
  for (int r = 0; r < ranks; ++r) {
    list.emplace_back(r, ranks);
    list.back().group("/0", everyone);
    for (int s = 0; s < streams; ++s) list.back().stream("stream");
  }
  const auto stream = [&] { return static_cast<std::uint16_t>(1 + below(streams)); };
  for (int a = 0; a < actions; ++a) {
    const int kind = below(12);
    if (kind == 0) {
      for (auto& w : list) w.host_exchange("counts", static_cast<std::uint32_t>(a % 2));
      continue;
    }
    if (kind <= 2) {
      std::vector<std::vector<dry::message>> sends(list.size()), receives(list.size());
      for (int n = below(2 * ranks); n >= 0; --n) {
        const int from = below(ranks), to = below(ranks);
        const auto bytes = static_cast<std::size_t>(1 + below(8));
        sends[static_cast<std::size_t>(from)].push_back({to, bytes});
        receives[static_cast<std::size_t>(to)].push_back({from, bytes});
      }
      const auto group = static_cast<std::uint32_t>(below(2));
      for (std::size_t r = 0; r < list.size(); ++r)
        list[r].exchange(stream(), sends[r], receives[r], "exchange", a, group);
      continue;
    }
    for (auto& w : list) {
      const auto s = stream(), other = stream();
      switch (below(9)) {
      case 0:
        w.operation(s, dry::engine::host_to_device, 0, static_cast<std::uint64_t>(1 + below(4)));
        break;
      case 1:
        w.operation(s, dry::engine::device_to_host, 0, static_cast<std::uint64_t>(1 + below(4)));
        break;
      case 2:
        w.operation(s, dry::engine::device_copy, 0, static_cast<std::uint64_t>(1 + below(200)));
        break;
      case 3:
        w.operation(s, dry::engine::host, 0, static_cast<std::uint64_t>(1 + below(200)));
        break;
      case 4:
      case 5:
        if (s != other && w.commands(other) > 0) w.wait(s, other, 1 + random() % w.commands(other));
        break;
      case 6:
        if (below(3) == 0 && w.commands(other) > 0) w.host_wait(other, 1 + random() % w.commands(other));
        break;
      default:
        w.operation(s, dry::engine::compute, 0.25 * below(16), static_cast<std::uint64_t>(below(300)));
      }
    }
  }
  return list;
}
pl::hardware random_machine(std::mt19937& random) {
  pl::hardware h = plateau_test::slow_machine();
  const auto quarter = [&](unsigned n) { return 0.25 * static_cast<double>(random() % n); };
  h.ranks_per_node = 1 + static_cast<int>(random() % 3);
  h.launch_seconds = quarter(3);
  h.host_exchange_seconds = quarter(4);
  h.operation_seconds = quarter(3);
  h.node_link_seconds = quarter(3);
  h.network_seconds = quarter(4);
  h.host_link_bytes_per_second = 1.25 + quarter(4);
  return h;
}

TEST_CASE("random programs end, not before any of their bounds, and again at the same time") {
  std::mt19937 random(1);
  for (int n = 0; n < 400; ++n) {
    CAPTURE(n);
    const pl::hardware h = random_machine(random);
    const auto writers = random_programs(random, 1 + n % 5, 60);
    const auto programs = plateau_test::addresses(writers);
    const dry::timeline t = dry::solve(programs, {}, h);
    REQUIRE(t.trouble == "");
    REQUIRE(t.complete);
    const dry::cost_model model(h);
    for (std::size_t r = 0; r < programs.size(); ++r) {
      double launched = 0;
      double resources[dry::resource_count] = {};
      std::vector<double> streams(8);
      for (const dry::instruction& i : programs[r]->instructions) {
        if (i.what != dry::action::operation && i.what != dry::action::exchange) continue;
        launched += h.launch_seconds;
        if (i.what != dry::action::operation) continue;
        const dry::cost c = model.operation(i);
        streams[i.stream] += c.seconds;
        for (std::size_t k = 0; k < dry::resource_count; ++k) resources[k] += c.seconds * c.shares[k];
      }
      const dry::rank_times& times = t.ranks[r];
      const double end = times.seconds * (1 + 1e-9);
      CHECK(launched <= end);
      for (const double s : streams) CHECK(s <= end);
      for (const double k : resources) CHECK(k <= end);
      CHECK(times.compute_busy >= resources[0] * (1 - 1e-9)); // the device is busy while any kernel runs
      CHECK(times.compute_busy + times.exposed_transfer <= end);
      CHECK(times.transfer_busy <= end);
      CHECK(times.host_blocked <= end);
      CHECK(times.seconds <= t.seconds);
    }
    const dry::timeline again = dry::solve(programs, {}, h);
    for (std::size_t r = 0; r < programs.size(); ++r) CHECK(again.ranks[r].seconds == t.ranks[r].seconds);
    const dry::timeline perturbed = dry::solve(programs, {}, h, {9, 0.01});
    CHECK(perturbed.complete);
  }
}

TEST_CASE("random programs take as long as in tiny steps") {
  std::mt19937 random(2);
  constexpr double step = 1.0 / 1024;
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const pl::hardware h = random_machine(random);
    const auto writers = random_programs(random, 1 + n % 4, 25);
    const auto programs = plateau_test::addresses(writers);
    const dry::timeline t = dry::solve(programs, {}, h);
    REQUIRE(t.complete);
    const double slow = plateau_test::tiny_steps(programs, h, step).run(2 * t.seconds + 10);
    // Each command may end up to a step late, and few are on the longest way.
    CHECK(slow == doctest::Approx(t.seconds).epsilon(30 * step / t.seconds));
  }
}

} // namespace
