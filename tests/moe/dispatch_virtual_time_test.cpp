// SPDX-License-Identifier: Apache-2.0
//
// What the dispatch promises of memory and time, without data: the reference model's expert, bf16, with the
// scratch of CUDA, in the virtual time of the H200 preset, which is the same on every machine. What is asked
// for here has room to spare; bench/dispatch_dry_run_bench.cpp has the figures.
#include "support/dry_dispatch.hpp"

#include <plateau/dry_run/presets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dry_dispatch;
using support::dry_layer;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::vector<pl::route_form> skews() {
  return {pl::routing::balanced{},       pl::routing::hot{950'000, 1}, pl::routing::hot{950'000, 4},
          pl::routing::hot{500'000, 16}, pl::routing::all_to_one{},    pl::routing::zipf{1}};
}
dry_layer paper() { return dry_layer::of_the_paper().cap(4096); }
bool of_routing(std::string_view line) {
  return line == "routes by expert" || line == "place of each route" || line == "first route of each expert";
}
std::size_t bytes_of(const dry_layer& l, std::string_view name) {
  std::size_t bytes = 0;
  for (const pl::memory_line& line : dry_dispatch::working_set_of(l, pl::dispatch_pass::backward))
    bytes += line.what == name ? line.bytes : 0;
  return bytes;
}

} // namespace

TEST_CASE("slots and foreign weights have the same bytes from 1K to 1M tokens, on 2 to 64 ranks") {
  for (const pl::dispatch_pass pass : {pl::dispatch_pass::forward, pl::dispatch_pass::backward}) {
    std::set<std::size_t> sizes;
    for (const int ranks : {2, 3, 8, 31, 64})
      for (const index_t tokens : {1 << 10, (1 << 16) - 1, 1 << 16, 1 << 20}) {
        dry_layer l = paper();
        l.ranks = ranks;
        l.shape.tokens = tokens;
        std::size_t bytes = 0;
        for (const pl::memory_line& line : dry_dispatch::working_set_of(l, pass))
          if (!of_routing(line.what) && std::string_view(line.what) != "sums of tokens" &&
              std::string_view(line.what) != "scratch") // that of grouping the routes where it is larger
            bytes += pl::aligned_bytes(line.bytes);
        sizes.insert(bytes);
      }
    CHECK(sizes.size() == 1);
  }
}

TEST_CASE("D8: no skew changes a byte of what the ranks hold") {
  std::set<std::size_t> workspaces, peaks;
  for (const pl::route_form& form : skews()) {
    dry_layer l = paper();
    l.shape.tokens = 8192;
    l.routes = form;
    const dry_dispatch d(l);
    workspaces.insert(d.workspace_bytes.begin(), d.workspace_bytes.end());
    for (int r = 0; r < l.ranks; ++r) peaks.insert(d.ran.peaks(r).total.bytes);
  }
  CHECK(workspaces.size() == 1);
  CHECK(peaks.size() == 1);
}

TEST_CASE("65,536 tokens a rank, 128 experts of 2,880: 2.0 GiB beside the routing index") {
  const dry_layer l = paper();
  std::size_t all = 0, routing = 0;
  for (const pl::memory_line& line : dry_dispatch::working_set_of(l, pl::dispatch_pass::backward))
    (of_routing(line.what) ? routing : all) += pl::aligned_bytes(line.bytes);
  CHECK(all <= 2048 * mebibyte);
  CHECK(bytes_of(l, "sums of tokens") == 65536u * 2880 * 4); // the accumulator is inside,
  const std::size_t weights = 3 * 2880u * 2880;
  CHECK(bytes_of(l, "foreign weights") == 2 * weights * 2); // so are slots of foreign experts,
  CHECK(bytes_of(l, "gradients of foreign weights") == 2 * weights * 4);
  CHECK(bytes_of(l, "scratch") > 3 * 4096u * 2880 * 2 + 32 * mebibyte); // and cuBLAS's workspace
  CHECK(routing <= 16u * 65536 * 8 + 128 * 16);
  // What a rank holds is that, and nothing else.
  const dry_dispatch d(l);
  CHECK(d.workspace_bytes[0] == all + routing);
}

TEST_CASE("with a cap of 4,096 rows the layer is as fast as without") {
  dry_layer uncapped = dry_layer::of_the_paper().cap(8 * 65536);
  uncapped.shape.slots = 1;
  const pl::hardware machine = pl::h200();
  const dry_dispatch whole(uncapped), parts(paper());
  REQUIRE(whole.statistics_of_forward[0].rounds == 1);
  REQUIRE(parts.statistics_of_forward[0].rounds == 128);
  const auto a = whole.solve(machine).all, b = parts.solve(machine).all;
  CHECK(a.flops == b.flops);
  CHECK(a.seconds / b.seconds >= 0.95);
  // Without the transfers that one round cannot hide, traffic of small groups is all that is left.
  CHECK(a.compute / b.compute >= 0.93);
  const dry_dispatch fine(dry_layer::of_the_paper().cap(512));
  CHECK(a.compute / fine.solve(machine).all.compute < 0.8); // which a fine cap does have
}

TEST_CASE("transfers show in at most 2% of the layer's time, in 5% where costs are off by 30%") {
  const pl::hardware machine = pl::h200();
  for (const pl::route_form& form :
       {pl::route_form(pl::routing::balanced{}), pl::route_form(pl::routing::hot{950'000, 1}),
        pl::route_form(pl::routing::hot{950'000, 4})}) {
    dry_layer l = paper();
    l.routes = form;
    for (const int slots : {2, 3}) {
      CAPTURE(slots);
      l.shape.slots = slots;
      const dry_dispatch d(l);
      CHECK(d.solve(machine).all.exposed_share() <= 0.02);
      for (std::uint64_t seed = 1; seed <= 5; ++seed)
        CHECK(d.solve(machine, {seed, 0.3}).all.exposed_share() <= 0.05);
    }
  }
  dry_layer one_slot = paper();
  one_slot.shape.slots = 1;
  CHECK(dry_dispatch(one_slot).solve(machine).all.exposed_share() > 0.15); // there is something to hide
}

TEST_CASE("with three slots, transfers of half to nearly all of the compute cost no more than the fill") {
  for (const index_t cap : {4096, 65536}) {
    dry_layer l = dry_layer::of_the_paper().cap(cap);
    l.shape.slots = 3;
    l.shape.rounds = pl::round_policy::smooth; // every round has as much to send
    const dry_dispatch d(l);
    const auto rounds = static_cast<double>(d.statistics_of_forward[0].rounds);
    REQUIRE(rounds >= 8);
    for (const double speed : {0.65, 0.5, 0.4, 0.35}) {
      CAPTURE(speed);
      pl::hardware slow = pl::h200();
      slow.node_link_bytes_per_second *= speed;
      const auto t = d.solve(slow).forward;
      CHECK(t.transfer >= 0.45 * t.compute);
      CHECK(t.transfer <= t.compute);
      CHECK(t.seconds <= 1.05 * (std::max(t.compute, t.transfer) + t.transfer / rounds));
    }
  }
}

TEST_CASE("kernels of a round are charged for its rows, not for all tokens") {
  dry_layer l = paper();
  l.ranks = 2;
  l.shape.tokens = 4096;
  l.shape.experts = 8;
  const dry_dispatch d(l);
  const auto& program = d.ran.recorders[0]->program();
  std::uint64_t gathered = 0, added = 0;
  for (const pl::dry::instruction& i : program.instructions) {
    if (i.what != pl::dry::action::operation) continue;
    const std::string_view name = program.labels[i.name].name;
    if (name.find("gather_rows") != name.npos) gathered += i.bytes;
    if (name.find("scatter_add") != name.npos) added += i.bytes;
  }
  const std::uint64_t routes = 4096 * 8, row = 2880 * 2;
  CHECK(gathered == 3 * routes * (2 * row + 4)); // forward; rows and output gradients again in backward
  CHECK(added == 2 * routes * (row + 4 * 8 + 8 + 2 * 2 * row));
}

TEST_CASE("nothing of it is out of order") {
  for (const int slots : {1, 2, 3})
    for (const pl::route_form& form : skews()) {
      dry_layer l;
      l.ranks = 4;
      l.hidden = l.intermediate = 64;
      l.shape.tokens = 512;
      l.shape.experts = 32;
      l.shape.top_k = 4;
      l.shape.slots = slots;
      l.shape.placement.least_piece_rows = 16;
      l.cap(96);
      l.routes = form;
      l.check_order = true;
      const dry_dispatch d(l);
      for (const std::string& each : d.ran.findings()) FAIL_CHECK(each);
    }
}
