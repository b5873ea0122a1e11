// SPDX-License-Identifier: Apache-2.0
//
// The dispatch without data, in virtual time on the H200 preset: eight ranks of a node, 65,536 tokens each,
// 128 experts, eight to a token, hidden and intermediate 2,880, bf16, with the scratch of CUDA. What it takes
// beside inputs, outputs, weights and their gradients, and whether that is the same whatever comes; which cap
// is as fast as none; what of the transfers shows, also where every cost is off by up to 30%. Nothing here is
// measured: the same program gives the same figures on any machine.
#include "table.hpp"

#include "support/dry_dispatch.hpp"

#include <plateau/dry_run/presets.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t;
using support::dry_dispatch;
using support::dry_layer;

constexpr double gibibyte = 1024.0 * 1024 * 1024;
constexpr index_t chosen_cap = 4096;

bench::spread one(double x) { return {x, x, x, x, 0}; }
dry_layer paper() { return dry_layer::of_the_paper().cap(chosen_cap); }
bool of_routing(std::string_view line) {
  return line == "routes by expert" || line == "place of each route" || line == "first route of each expert";
}
bool linear_in_tokens(std::string_view line) { // scratch: that of grouping the routes, from some size on
  return of_routing(line) || line == "sums of tokens" || line == "scratch";
}

void memory(bench::table& table) {
  // By line of backward, which takes the most; lines of the same name are of different slots.
  std::vector<std::pair<std::string, double>> lines;
  double all = 0, routing = 0;
  for (const pl::memory_line& line : dry_dispatch::working_set_of(paper(), pl::dispatch_pass::backward)) {
    const auto bytes = static_cast<double>(line.bytes);
    (of_routing(line.what) ? routing : all) += bytes;
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == line.what; });
    if (same == lines.end())
      lines.emplace_back(line.what, bytes);
    else
      same->second += bytes;
  }
  for (const auto& [name, bytes] : lines) table.row("working set, GiB: " + name, one(bytes / gibibyte));
  table.row(fmt::format("all but the routing index, GiB, cap {}", chosen_cap), one(all / gibibyte),
            bench::goal::at_most(2));
  table.row("routing index, GiB", one(routing / gibibyte));

  std::set<std::size_t> slots;
  for (const int ranks : {2, 4, 8, 16, 32, 64})
    for (const index_t tokens : {1 << 10, 1 << 13, 1 << 16, 1 << 20}) {
      dry_layer l = paper();
      l.ranks = ranks;
      l.shape.tokens = tokens;
      std::size_t bytes = 0;
      for (const pl::memory_line& line : dry_dispatch::working_set_of(l, pl::dispatch_pass::backward))
        bytes += linear_in_tokens(line.what) ? 0 : line.bytes;
      slots.insert(bytes);
    }
  table.row("different sizes of slots and foreign weights, 1K to 1M tokens, 2 to 64 ranks",
            one(static_cast<double>(slots.size())), bench::goal::at_most(1));

  dry_layer uncapped = dry_layer::of_the_paper().cap(8 * 8 * 65536);
  uncapped.shape.slots = 1;
  uncapped.shape.placement.policy = pl::placement_policy::native;
  // As many rows as arrive: an even share, or 95% of all and an even share of the rest.
  for (const auto& [name, rows] :
       {std::pair{"balanced", 8.0 * 65536},
        std::pair{"95% into one expert", 8.0 * 8 * 65536 * (0.95 + 0.05 * 15 / 127)}}) {
    uncapped.shape.receive_cap_rows = static_cast<index_t>(rows);
    uncapped.shape.send_cap_rows = 8 * 65536;
    table.row(fmt::format("uncapped, native, {}: GiB at the busiest rank", name),
              one(static_cast<double>(
                      dry_dispatch::working_set_of(uncapped, pl::dispatch_pass::backward).device_bytes()) /
                  gibibyte));
  }
}

void caps(bench::table& table, const pl::hardware& machine) {
  dry_layer uncapped = dry_layer::of_the_paper().cap(8 * 65536);
  uncapped.shape.slots = 1;
  const auto whole = dry_dispatch(uncapped).solve(machine).all;
  table.row("uncapped, one round, balanced: ms of forward and backward", one(whole.seconds * 1e3));
  table.row("  of which products and kernels", one(whole.compute * 1e3));
  for (const index_t cap : {65536, 32768, 16384, 8192, 4096, 2048, 1024, 512}) {
    const dry_dispatch d(dry_layer::of_the_paper().cap(cap));
    const auto t = d.solve(machine).all;
    const bool chosen = cap == chosen_cap;
    const std::string name = fmt::format("cap {}, {} rounds", cap, d.statistics_of_forward[0].rounds);
    table.row(name + ": throughput / uncapped", one(whole.seconds / t.seconds),
              chosen ? bench::goal::at_least(0.95) : bench::goal{});
    table.row("  products and kernels alone, uncapped / with this cap", one(whole.compute / t.compute));
    table.row("  exposed transfers, % of the time", one(100 * t.exposed_share()),
              chosen ? bench::goal::at_most(2) : bench::goal{});
    table.row("  workspace with the routing index, GiB",
              one(static_cast<double>(d.workspace_bytes[0]) / gibibyte));
  }
}

double worst_of(const dry_dispatch& d, const pl::hardware& machine, double perturb, std::uint64_t seeds) {
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    worst = std::max(worst, d.solve(machine, {seed, perturb}).all.exposed_share());
  return worst;
}

void skews(bench::table& table, const pl::hardware& machine) {
  const std::pair<const char*, pl::route_form> forms[] = {
      {"balanced", pl::routing::balanced{}},
      {"95% into one expert", pl::routing::hot{950'000, 1}},
      {"95% into four", pl::routing::hot{950'000, 4}},
      {"50% into sixteen", pl::routing::hot{500'000, 16}},
      {"all into eight of one rank", pl::routing::all_to_one{}},
      {"Zipf, exponent 1", pl::routing::zipf{1}}};
  std::set<std::size_t> bytes;
  for (const int slots : {2, 3})
    for (const auto& [name, form] : forms) {
      dry_layer l = paper();
      l.routes = form;
      l.shape.slots = slots;
      const dry_dispatch d(l);
      const auto t = d.solve(machine).all;
      if (slots == 2) bytes.insert(d.workspace_bytes.begin(), d.workspace_bytes.end());
      const auto& s = d.statistics_of_backward[0];
      table.row(fmt::format("{}, {} slots: ms of forward and backward", name, slots), one(t.seconds * 1e3));
      table.row("  busiest rank / mean, as computed", one(s.skew()));
      table.row("  the same if no expert moved", one(s.native_skew()));
      table.row("  exposed transfers, % of the time", one(100 * t.exposed_share()), bench::goal::at_most(2));
      table.row("  the same with costs +-30%, worst of 20 seeds", one(100 * worst_of(d, machine, 0.3, 20)),
                bench::goal::at_most(5));
    }
  table.row("different workspaces over these, 2 slots", one(static_cast<double>(bytes.size())),
            bench::goal::at_most(1));
}

// Forward, with links slower and slower: total / (the larger of the two + the first way out and the last way
// back).
void hiding(bench::table& table, const pl::hardware& machine) {
  using policy = pl::round_policy;
  const auto rows = [&](int slots, policy which, const char* name, bool promised) {
    for (const index_t cap : {chosen_cap, index_t{65536}}) {
      dry_layer l = dry_layer::of_the_paper().cap(cap);
      l.shape.slots = slots;
      l.shape.rounds = which;
      const dry_dispatch d(l);
      const index_t rounds = d.statistics_of_forward[0].rounds;
      for (const double speed : {0.65, 0.5, 0.4, 0.34}) {
        pl::hardware slow = machine;
        slow.node_link_bytes_per_second *= speed;
        const auto t = d.solve(slow).forward;
        table.row(
            fmt::format("{} slots, {}, {} rounds, transfers {:.2f} of compute", slots, name, rounds,
                        t.transfer / t.compute),
            one(t.seconds / (std::max(t.compute, t.transfer) + t.transfer / static_cast<double>(rounds))),
            promised ? bench::goal::at_most(1.05) : bench::goal{});
      }
    }
  };
  rows(2, policy::expert_first, "expert-first", false);
  rows(3, policy::expert_first, "expert-first", true);
  rows(3, policy::smooth, "smooth", true);
}

void grouping(bench::table& table, const pl::hardware& machine) {
  using policy = pl::round_policy;
  for (const auto& [name, which] :
       {std::pair{"expert-first", policy::expert_first}, std::pair{"diagonal", policy::diagonal},
        std::pair{"smooth", policy::smooth}}) {
    dry_layer l = paper();
    l.routes = pl::routing::zipf{1};
    l.shape.rounds = which;
    const dry_dispatch d(l);
    table.row(fmt::format("Zipf, {}: rows of a group", name),
              one(d.statistics_of_forward.front().rows_per_group()));
    table.row("  ms of forward and backward", one(d.solve(machine).all.seconds * 1e3));
  }
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  const pl::hardware machine = pl::h200();
  memory(table);
  caps(table, machine);
  skews(table, machine);
  hiding(table, machine);
  grouping(table, machine);
}
