// SPDX-License-Identifier: Apache-2.0
//
// Virtual times worked out by hand, on a machine where a byte or a flop takes a second.
#include <plateau/dry_run/solve.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using doctest::Approx;
using dry::engine;
using plateau_test::addresses;
using plateau_test::program_writer;
using plateau_test::slow_machine;

dry::timeline solved(const std::vector<program_writer>& writers, const pl::hardware& h = slow_machine(),
                     const dry::solve_options& options = {}, const dry::fold& f = {}) {
  const auto programs = addresses(writers);
  return dry::solve(programs, f, h, options);
}
std::vector<program_writer> ranks(int n) {
  std::vector<program_writer> list;
  for (int r = 0; r < n; ++r) list.emplace_back(r, n);
  return list;
}
double mark(const dry::rank_times& t, const std::string& name) {
  for (const dry::marked_moment& m : t.marks)
    if (m.name == name) return m.so_far.seconds;
  return -1;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("nothing takes no time") {
  const auto t = solved(ranks(1));
  CHECK(t.complete);
  CHECK(t.seconds == 0);
  CHECK(solved({}).complete);
}

TEST_CASE("one stream runs its commands one after the other; the host goes on at once") {
  auto r = ranks(1);
  const auto s = r[0].stream("main");
  r[0].compute(s, 3);
  r[0].compute(s, 4);
  r[0].mark("issued");
  r[0].host_wait(s, 1, true);
  r[0].mark("first");
  r[0].host_wait(s, 1);
  r[0].close(s);
  r[0].mark("all");
  const auto t = solved(r);
  CHECK(t.complete);
  CHECK(t.trouble == "");
  CHECK(t.seconds == 7);
  const dry::rank_times& times = t.ranks[0];
  CHECK(mark(times, "issued") == 0);
  CHECK(mark(times, "first") == 3);
  CHECK(mark(times, "all") == 7);
  CHECK(times.host_blocked == 7);
  CHECK(times.compute_busy == 7);
  CHECK(times.transfer_busy == 0);
  CHECK(times.operations == 2);
  CHECK(times.host_round_trips == 1);
  CHECK(times.flops == 7);
}

TEST_CASE("a mark finds what runs accounted as far as it has come") {
  pl::hardware h = slow_machine();
  h.launch_seconds = 1;
  auto r = ranks(1);
  // Both begin, and nothing ends before the mark.
  const auto s = r[0].stream("main"), t = r[0].stream("moves");
  r[0].compute(s, 16);
  r[0].operation(t, dry::engine::host_to_device, 0, 32);
  r[0].wait(t, s, 1);
  for (int i = 0; i < 4; ++i) r[0].compute(s, 1);
  r[0].mark("issued");
  const auto times = solved(r, h).ranks.front();
  REQUIRE(times.marks.size() == 1);
  CHECK(times.marks[0].so_far.seconds == 6);
  CHECK(times.marks[0].so_far.compute_busy == 5);
  CHECK(times.marks[0].so_far.transfer_busy == 4);
  CHECK(times.marks[0].so_far.exposed_transfer == 0);
}

TEST_CASE("an operation does not begin before it was issued") {
  pl::hardware h = slow_machine();
  h.launch_seconds = 1;
  auto r = ranks(1);
  const auto s = r[0].stream("main");
  r[0].compute(s, 3);
  r[0].compute(s, 4);
  CHECK(solved(r, h).seconds == 8);
  // Small operations are bound by the host.
  auto q = ranks(1);
  const auto small = q[0].stream("main");
  for (int i = 0; i < 5; ++i) q[0].compute(small, 0.25);
  q[0].mark("issued");
  const auto t = solved(q, h);
  CHECK(t.seconds == 5.25);
  CHECK(mark(t.ranks[0], "issued") == 5);
  CHECK(t.ranks[0].compute_busy == 1.25);
}

TEST_CASE("two kernels at a time take twice as long") {
  auto r = ranks(1);
  const auto a = r[0].stream("a"), b = r[0].stream("b");
  const auto first = r[0].compute(a, 3);
  r[0].compute(b, 4);
  r[0].host_wait(a, first);
  r[0].mark("a");
  const auto t = solved(r);
  CHECK(mark(t.ranks[0], "a") == 6);
  CHECK(t.seconds == 7);
  CHECK(t.ranks[0].compute_busy == 7);
}

TEST_CASE("copies of both directions meet only in what the link can do together") {
  for (const double link : {2.0, 1.5, 1.0}) {
    pl::hardware h = slow_machine();
    h.host_link_bytes_per_second = link;
    auto r = ranks(1);
    const auto in = r[0].stream("in"), out = r[0].stream("out");
    r[0].operation(in, engine::host_to_device, 0, 9);
    r[0].operation(out, engine::device_to_host, 0, 9);
    const auto t = solved(r, h);
    CHECK(t.seconds == Approx(18 / link));
    CHECK(t.ranks[0].transfer_busy == Approx(18 / link));
    CHECK(t.ranks[0].exposed_transfer == Approx(18 / link));
  }
  // Two of one direction share it.
  auto r = ranks(1);
  const auto a = r[0].stream("a"), b = r[0].stream("b");
  r[0].operation(a, engine::host_to_device, 0, 9);
  r[0].operation(b, engine::host_to_device, 0, 3);
  CHECK(solved(r).seconds == Approx(12));
}

TEST_CASE("a copy under a kernel is not exposed; a kernel that streams slows it down") {
  auto r = ranks(1);
  const auto a = r[0].stream("a"), b = r[0].stream("b");
  r[0].compute(a, 6);
  r[0].operation(b, engine::host_to_device, 0, 9);
  const auto t = solved(r);
  CHECK(t.seconds == 9);
  CHECK(t.ranks[0].exposed_transfer == 3);
  CHECK(t.ranks[0].compute_busy == 6);
  // 600 bytes at 100 a second leave no room for the copy's one byte in a hundred.
  auto q = ranks(1);
  const auto c = q[0].stream("a"), d = q[0].stream("b");
  q[0].operation(c, engine::compute, 0, 600);
  q[0].operation(d, engine::host_to_device, 0, 9);
  CHECK(solved(q).ranks[0].compute_busy == Approx(6 * 1.01));
}

TEST_CASE("a pipeline of three slots takes its buckets and two") {
  for (const int buckets : {1, 2, 3, 8, 40}) {
    auto r = ranks(1);
    const auto in = r[0].stream("in"), compute = r[0].stream("compute"), out = r[0].stream("out");
    std::vector<std::uint64_t> done;
    for (int b = 0; b < buckets; ++b) {
      if (b >= 3) r[0].wait(in, out, done[static_cast<std::size_t>(b - 3)]);
      const auto arrived = r[0].operation(in, engine::host_to_device, 0, 5);
      r[0].wait(compute, in, arrived);
      const auto computed = r[0].compute(compute, 5);
      r[0].wait(out, compute, computed);
      done.push_back(r[0].operation(out, engine::device_to_host, 0, 5));
    }
    CHECK(solved(r).seconds == Approx(5 * (buckets + 2)));
  }
}

TEST_CASE("a wait counts commands over all uses of a stream's number") {
  auto r = ranks(1);
  const auto a = r[0].stream("a"), b = r[0].stream("b");
  r[0].compute(a, 2);
  r[0].close(a);
  r[0].reopen(a, "a");
  const auto second = r[0].compute(a, 3);
  CHECK(second == 2);
  r[0].wait(b, a, second);
  r[0].operation(b, engine::host_to_device, 0, 1);
  CHECK(solved(r).seconds == 6);
}

TEST_CASE("an exchange of two ranks of a node begins when both have come") {
  pl::hardware h = slow_machine();
  h.node_link_seconds = 0.5;
  auto r = ranks(2);
  for (int k = 0; k < 2; ++k) {
    const auto s = r[static_cast<std::size_t>(k)].stream("main");
    r[static_cast<std::size_t>(k)].compute(s, k == 0 ? 1 : 3);
    r[static_cast<std::size_t>(k)].exchange(s, {{1 - k, 20}}, {{1 - k, 20}});
    r[static_cast<std::size_t>(k)].compute(s, 1);
  }
  const auto t = solved(r, h);
  CHECK(t.ranks[0].seconds == 6.5);
  CHECK(t.ranks[1].seconds == 6.5);
  CHECK(t.ranks[0].exposed_transfer == 4.5); // two of them waiting for the peer
  CHECK(t.ranks[1].exposed_transfer == 2.5);
  CHECK(t.ranks[0].transfer_busy == 2.5);
  CHECK(t.ranks[0].sent_bytes == 20);
  CHECK(t.ranks[0].exchanges == 1);
}

TEST_CASE("an all-to-all of four ranks in two nodes is bound by the network") {
  auto r = ranks(4);
  for (auto& w : r) {
    const auto s = w.stream("main");
    std::vector<dry::message> all;
    for (int peer = 0; peer < 4; ++peer) all.push_back({peer, 10});
    w.exchange(s, all, all);
  }
  const auto t = solved(r);
  CHECK(t.complete);
  for (const auto& times : t.ranks) {
    CHECK(times.seconds == 20); // two peers across, 10 bytes each; in the node it would be 1
    CHECK(times.sent_bytes == 30);
  }
}

TEST_CASE("two exchanges of a rank at a time share its links") {
  auto r = ranks(2);
  for (int k = 0; k < 2; ++k) {
    auto& w = r[static_cast<std::size_t>(k)];
    const auto other = w.group("/0", {0, 1});
    const auto a = w.stream("a"), b = w.stream("b");
    w.exchange(a, {{1 - k, 20}}, {{1 - k, 20}});
    w.exchange(b, {{1 - k, 20}}, {{1 - k, 20}}, "other", 1, other);
  }
  CHECK(solved(r).seconds == Approx(4));
}

TEST_CASE("exchanges of a group are posted in the order of their issue, whatever their streams") {
  auto r = ranks(2);
  for (int k = 0; k < 2; ++k) {
    auto& w = r[static_cast<std::size_t>(k)];
    const auto a = w.stream("a"), b = w.stream("b");
    w.compute(a, 5);
    w.exchange(a, {{1 - k, 10}}, {{1 - k, 10}});
    w.exchange(b, {{1 - k, 20}}, {{1 - k, 20}}); // at the head of b from the beginning
    w.host_wait(b, 1);
    w.mark("b");
  }
  const auto t = solved(r);
  CHECK(mark(t.ranks[0], "b") > 5);
  CHECK(t.seconds == Approx(8));
}

TEST_CASE("a host exchange takes the latest host, and a step for each doubling of the ranks") {
  pl::hardware h = slow_machine();
  h.host_exchange_seconds = 0.5;
  auto r = ranks(4);
  for (int k = 0; k < 4; ++k) {
    auto& w = r[static_cast<std::size_t>(k)];
    const auto s = w.stream("main");
    w.compute(s, k);
    w.host_wait(s, 1);
    w.host_exchange();
    w.mark("met");
    w.host_exchange();
  }
  const auto t = solved(r, h);
  for (const auto& times : t.ranks) {
    CHECK(mark(times, "met") == 4);
    CHECK(times.seconds == 5);
    CHECK(times.host_blocked == 5);
    CHECK(times.host_exchanges == 2);
  }
}

// A step of a ring of ranks, symmetrical but for their numbers.
void ring_step(program_writer& w, int rank, int n, int layers) {
  const auto s = w.stream("main"), x = w.stream("exchange");
  for (int l = 0; l < layers; ++l) {
    const auto computed = w.compute(s, 3 + l % 2);
    w.wait(x, s, computed);
    const auto sent = w.exchange(x, {{(rank + 1) % n, 8}}, {{(rank + n - 1) % n, 8}}, "ring", 1);
    w.compute(s, 1.5);
    w.wait(s, x, sent);
    w.host_exchange();
  }
}

TEST_CASE("folded ranks have the times that they have unfolded") {
  constexpr int n = 8;
  pl::hardware h = slow_machine();
  h.ranks_per_node = n;
  h.launch_seconds = 0.125;
  h.host_exchange_seconds = 0.25;
  h.node_link_seconds = 0.5;
  auto all = ranks(n);
  for (int r = 0; r < n; ++r) ring_step(all[static_cast<std::size_t>(r)], r, n, 5);
  std::vector<program_writer> first;
  first.emplace_back(0, n);
  ring_step(first[0], 0, n, 5);
  const auto unfolded = solved(all, h);
  const auto folded = solved(first, h, {}, {std::vector<int>(n, 0)});
  CHECK(unfolded.complete);
  CHECK(folded.complete);
  REQUIRE(folded.ranks.size() == 1);
  for (const auto& times : unfolded.ranks) {
    CHECK(times.seconds == folded.ranks[0].seconds);
    CHECK(times.compute_busy == folded.ranks[0].compute_busy);
    CHECK(times.exposed_transfer == folded.ranks[0].exposed_transfer);
    CHECK(times.host_blocked == folded.ranks[0].host_blocked);
    CHECK(times.sent_bytes == folded.ranks[0].sent_bytes);
  }
  // Two classes: every second rank computes longer, and the others wait for it.
  auto uneven = ranks(n);
  std::vector<program_writer> two;
  for (int r = 0; r < n; ++r) {
    ring_step(uneven[static_cast<std::size_t>(r)], r, n, 4);
    if (r > 1) continue;
    two.emplace_back(r, n);
    ring_step(two.back(), r, n, 4);
  }
  const auto longer = [](program_writer& w) {
    for (auto& i : w.program().instructions) i.flops *= 2;
  };
  for (std::size_t r = 1; r < n; r += 2) longer(uneven[r]);
  longer(two[1]);
  const auto a = solved(uneven, h);
  const auto b = solved(two, h, {}, {{0, 1, 0, 1, 0, 1, 0, 1}});
  CHECK(b.complete);
  for (std::size_t r = 0; r < n; ++r) {
    CHECK(a.ranks[r].seconds == b.ranks[r % 2].seconds);
    CHECK(a.ranks[r].exposed_transfer == b.ranks[r % 2].exposed_transfer);
  }
  CHECK(a.ranks[0].exposed_transfer > a.ranks[1].exposed_transfer);
}

TEST_CASE("exchanges that do not fit, host exchanges that are missing, are trouble") {
  auto r = ranks(2);
  for (auto& w : r) w.stream("main");
  r[0].exchange(1, {{1, 4}}, {}, "rows", 11);
  r[1].exchange(1, {}, {{0, 5}}, "rows", 22);
  const auto t = solved(r);
  CHECK(!t.complete);
  CHECK(has(t.trouble, "model.cpp:11"));
  CHECK(has(t.trouble, "model.cpp:22"));
  auto q = ranks(2);
  q[0].host_exchange("counts");
  CHECK(has(solved(q).trouble, "rank 0 calls 'counts', rank 1 has called only 0"));
}

TEST_CASE("a deadlock names the streams, operations and lines, and the circle") {
  auto r = ranks(2);
  for (int k = 0; k < 2; ++k) {
    auto& w = r[static_cast<std::size_t>(k)];
    const auto other = w.group("/0", {0, 1});
    const auto s = w.stream("main");
    const auto exchange = [&](std::uint32_t group) {
      w.exchange(s, {{1 - k, 8}}, {{1 - k, 8}}, group == 0 ? "rows" : "gates",
                 10 * k + static_cast<int>(group) + 1, group);
    };
    exchange(k == 0 ? 0 : other);
    exchange(k == 0 ? other : 0);
  }
  const auto t = solved(r);
  CHECK(!t.complete);
  CAPTURE(t.trouble);
  CHECK(has(t.trouble, "deadlock"));
  CHECK(has(t.trouble,
            "rank 0 stream 'main' is held in 'rows' at model.cpp:1, waiting for rank 1 stream 'main'"));
  CHECK(has(t.trouble,
            "rank 1 stream 'main' is held in 'gates' at model.cpp:12, waiting for rank 0 stream 'main'"));
  CHECK(has(t.trouble, "the circle: rank 0 stream 'main' -> rank 1 stream 'main' -> rank 0 stream 'main'"));
}

TEST_CASE("a deadlock through the host and through a wait") {
  auto r = ranks(2);
  const auto a = r[0].stream("main");
  r[0].exchange(a, {{1, 8}}, {}, "rows", 5);
  r[0].host_wait(a, 1, false, 6);
  r[0].host_exchange("counts");
  const auto b = r[1].stream("main");
  r[1].host_exchange("counts");
  r[1].exchange(b, {}, {{0, 8}}, "rows", 7);
  const auto t = solved(r);
  CAPTURE(t.trouble);
  CHECK(has(t.trouble,
            "rank 0 host is held in 'the host waits' at model.cpp:6, waiting for rank 0 stream 'main'"));
  CHECK(has(t.trouble, "rank 0 stream 'main' is held in 'rows' at model.cpp:5, waiting for rank 1 host"));
  CHECK(has(t.trouble, "rank 1 host is held in 'counts', waiting for rank 0 host"));
  CHECK(has(t.trouble, "the circle: rank 0 host -> rank 0 stream 'main' -> rank 1 host -> rank 0 host"));
  // A wait for more than is ever issued.
  auto q = ranks(1);
  const auto c = q[0].stream("c"), d = q[0].stream("d");
  q[0].wait(c, d, 3, 9);
  CHECK(has(solved(q).trouble,
            "rank 0 stream 'c' is held in 'wait' at model.cpp:9, waiting for rank 0 stream 'd'"));
}

TEST_CASE("a rank's own failure is the trouble, not its echoes, not what it left unmatched") {
  auto r = ranks(3);
  const auto s = r[0].stream("main");
  r[0].exchange(s, {{2, 8}}, {}, "rows", 1);
  r[0].program().ended_by = pl::failure{pl::failure::kind::collective, "no memory", 2, "rows", 7};
  r[2].program().ended_by = pl::failure{pl::failure::kind::backend, "no memory"};
  auto t = solved(r);
  CHECK(!t.complete);
  CHECK(t.trouble == "rank 2 failed: no memory");
  r[2].program().ended_by.reset();
  CHECK(solved(r).trouble == "rank 2 failed in rows (operation 7): no memory");
}

TEST_CASE("bad options and programs are refused") {
  auto r = ranks(1);
  CHECK_THROWS_AS(solved(r, slow_machine(), {0, 1.0}), pl::config_error);
  CHECK_THROWS_AS(solved(r, slow_machine(), {0, -0.1}), pl::config_error);
  CHECK_THROWS_AS(solved(r, pl::hardware{}), pl::config_error);
  r[0].compute(0, 1);
  CHECK_THROWS_AS(solved(r), pl::config_error); // on a stream that was never opened
}

TEST_CASE("the same input gives the same bits, and a seed its own") {
  constexpr int n = 4;
  auto r = ranks(n);
  for (int k = 0; k < n; ++k) ring_step(r[static_cast<std::size_t>(k)], k, n, 30);
  pl::hardware h = slow_machine();
  h.launch_seconds = 0.1;
  const dry::solve_options options{5, 0.2, false};
  const auto first = solved(r, h, options), plain = solved(r, h);
  for (int i = 0; i < 100; ++i) {
    // The tables of a program in another order do not matter.
    auto again = r;
    for (auto& w : again) {
      auto& p = w.program();
      std::reverse(p.labels.begin(), p.labels.end());
      for (auto& j : p.instructions)
        j.name = j.what == dry::action::open_stream
                     ? j.name
                     : static_cast<std::uint32_t>(p.labels.size() - 1 - j.name % p.labels.size());
      const auto extra = "/unused" + std::to_string(i);
      p.groups.insert(p.groups.begin(), {extra, {p.rank}, 0});
      for (auto& e : p.exchanges) ++e.group;
      for (auto& e : p.host_exchanges) ++e.group;
    }
    const auto t = solved(again, h, options);
    REQUIRE(t.complete);
    for (std::size_t k = 0; k < n; ++k) {
      REQUIRE(t.ranks[k].seconds == first.ranks[k].seconds);
      REQUIRE(t.ranks[k].exposed_transfer == first.ranks[k].exposed_transfer);
    }
  }
  CHECK(solved(r, h, {6, 0.2, false}).seconds != first.seconds);
  CHECK(first.seconds != plain.seconds);
  CHECK(first.seconds >= 0.8 * plain.seconds);
  CHECK(first.seconds <= 1.2 * plain.seconds);
}

TEST_CASE("launches, operations, exchanges and host exchanges are all perturbed") {
  const auto perturbed = [](auto fill, auto change) {
    pl::hardware h = slow_machine();
    change(h);
    auto r = ranks(2);
    for (int k = 0; k < 2; ++k) fill(r[static_cast<std::size_t>(k)], k);
    const double plain = solved(r, h).seconds, other = solved(r, h, {3, 0.1, false}).seconds;
    CHECK(other >= 0.9 * plain);
    CHECK(other <= 1.1 * plain);
    return other != plain;
  };
  const auto nothing = [](pl::hardware&) {};
  CHECK(perturbed([](program_writer& w, int) { w.compute(w.stream("main"), 1); }, nothing));
  CHECK(perturbed([](program_writer& w, int) { w.compute(w.stream("main"), 0); },
                  [](pl::hardware& h) { h.launch_seconds = 1; }));
  CHECK(perturbed(
      [](program_writer& w, int k) {
        w.exchange(w.stream("main"), {{1 - k, 10}}, {{1 - k, 10}});
      },
      nothing));
  CHECK(perturbed([](program_writer& w, int) { w.host_exchange(); },
                  [](pl::hardware& h) { h.host_exchange_seconds = 1; }));
}

TEST_CASE("events, memory and phases, at their virtual times") {
  auto r = ranks(2);
  for (int k = 0; k < 2; ++k) {
    auto& w = r[static_cast<std::size_t>(k)];
    w.phase("forward");
    w.memory(0, static_cast<std::uint16_t>(pl::tag::activations), 100);
    const auto s = w.stream("main");
    w.compute(s, k == 0 ? 2 : 5, "layer", 3);
    w.exchange(s, {{1 - k, 10}}, {{1 - k, 10}}, "rows", 4);
    w.operation(s, engine::device_to_host, 0, 3, "copy", 5);
    w.host_wait(s, 2, false, 6);
    w.phase("backward");
    w.memory(1, static_cast<std::uint16_t>(pl::tag::checkpoint), 7);
    w.close(s);
  }
  const auto t = solved(r, slow_machine(), {0, 0, true});
  REQUIRE(t.complete);
  const pl::trace& e = t.events;
  CHECK(e.streams == std::vector<std::string>{"host", "main"});
  REQUIRE(e.events.size() == 11); // of rank 0 five and its wait for rank 1
  const auto expect = [&](std::size_t i, const char* name, int rank, std::uint32_t stream,
                          pl::trace_kind kind, double begin, double end, std::uint64_t bytes) {
    CAPTURE(i);
    const pl::trace_event& x = e.events[i];
    CHECK(std::string(x.name) == name);
    CHECK(x.rank == rank);
    CHECK(x.stream == stream);
    CHECK(x.kind == kind);
    CHECK(x.begin == begin);
    CHECK(x.end == Approx(end));
    CHECK(x.bytes == bytes);
  };
  expect(0, "layer", 0, 1, pl::trace_kind::compute, 0, 2, 0);
  expect(1, "the host waits", 0, 0, pl::trace_kind::waiting, 0, 6, 0);
  expect(2, "rows", 0, 1, pl::trace_kind::waiting, 2, 5, 0);
  expect(3, "rows", 0, 1, pl::trace_kind::exchange, 5, 6, 10);
  expect(4, "copy", 0, 1, pl::trace_kind::copy, 6, 9, 3);
  expect(5, "close_stream", 0, 0, pl::trace_kind::waiting, 6, 9, 0);
  expect(6, "layer", 1, 1, pl::trace_kind::compute, 0, 5, 0);
  CHECK(e.events[4].at.line == 5);
  REQUIRE(e.memory.size() == 4);
  CHECK(e.memory[0].bytes == 100);
  CHECK(e.memory[0].tag == pl::tag::activations);
  CHECK(e.memory[1].at == 6);
  CHECK(e.memory[1].pool == pl::memory_kind::pinned_host);
  REQUIRE(e.phases.size() == 4);
  CHECK(std::string(e.phases[1].name) == "backward");
  CHECK(e.phases[1].at == 6);
  CHECK(e.phases[3].rank == 1);
  CHECK(solved(r).events.events.empty());
}

TEST_CASE("streams of one name share a line of the trace unless they are open together") {
  auto r = ranks(1);
  const auto a = r[0].stream("work");
  r[0].compute(a, 1);
  const auto b = r[0].stream("work");
  r[0].compute(b, 1);
  r[0].close(a);
  r[0].close(b);
  r[0].reopen(a, "work");
  r[0].compute(a, 1);
  const auto t = solved(r, slow_machine(), {0, 0, true});
  CHECK(t.events.streams == std::vector<std::string>{"host", "work", "work"});
  CHECK(t.events.events.back().stream == 1);
}

} // namespace
