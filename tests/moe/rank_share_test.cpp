// SPDX-License-Identifier: Apache-2.0
//
// A rank's share of a run's result comes out as it went in, and the traces of ranks that share no memory join
// as those of recorders side by side do.
#include "rank_share.hpp"
#include "trace_origin.hpp"

#include <plateau/run_ranks.hpp>
#include <plateau/trace/recorder.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace pl = plateau;

namespace {

auto fields(const moe::peak_record& r) {
  return std::tie(r.rank, r.tag, r.space, r.bytes, r.promised, r.held_at_peak, r.phase);
}
auto fields(const pl::trace_event& e) {
  return std::tuple(std::string(e.name), std::string(e.at.file), e.at.line, e.rank, e.stream, e.kind, e.begin,
                    e.end, e.bytes);
}
auto fields(const pl::trace_memory& m) { return std::tie(m.rank, m.pool, m.tag, m.at, m.bytes); }
auto fields(const pl::trace_phase& p) { return std::tuple(p.rank, std::string(p.name), p.at); }

template <class T> void check_same(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK((fields(a[i]) == fields(b[i])));
}

} // namespace

TEST_CASE("peaks and routes come out as they went in, by rank") {
  const auto record = [](int rank, const char* tag, std::uint64_t bytes) {
    moe::peak_record r;
    r.rank = rank;
    r.tag = tag;
    r.space = "device";
    r.bytes = bytes;
    r.held_at_peak = {{"other", bytes / 2}, {tag, bytes}};
    r.phase = "loss";
    return r;
  };
  std::vector<std::vector<std::int64_t>> words;
  moe::run_result expected;
  moe::routing_recorder routed;
  for (int rank = 0; rank < 3; ++rank) {
    moe::rank_share share;
    for (const char* tag : {"dispatch", "parameters"})
      share.peaks.peaks.push_back(record(rank, tag, 1'000'000'000'000u + static_cast<unsigned>(rank)));
    share.peaks.peaks.back().promised = 0;
    share.peaks.totals.push_back(record(rank, "total", 77));
    if (rank == 1) share.peaks.evaluation.push_back(record(rank, "total", 78));
    for (std::int64_t step = 0; step < 2; ++step) {
      const std::int64_t counts[] = {rank, step, 5};
      share.routes.add(step, 0, rank, counts);
      routed.add(step, 0, rank, counts);
    }
    words.push_back(share.words());
    moe::add_to_result(share.peaks, expected);
  }
  moe::run_result result;
  result.config.record_routing = "somewhere";
  moe::add_to_result(words, result);
  check_same(result.peaks, expected.peaks);
  check_same(result.totals, expected.totals);
  check_same(result.evaluation, expected.evaluation);
  CHECK(result.peaks.size() == 6);
  CHECK(result.evaluation.size() == 1);
  CHECK(result.routing == routed.csv());
  CHECK_FALSE(result.trace.has_value());
}

TEST_CASE("traces of ranks apart join as recorders side by side do") {
  const auto origin = pl::trace_recorder::clock::now();
  std::vector<std::unique_ptr<pl::trace_recorder>> recorders;
  std::vector<const pl::trace_recorder*> all;
  std::vector<std::vector<std::int64_t>> words;
  for (int rank = 0; rank < 3; ++rank) {
    recorders.push_back(std::make_unique<pl::trace_recorder>(rank, origin));
    pl::trace_recorder& r = *recorders.back();
    all.push_back(&r);
    // "main" one after the other, which is one stream, and "side" at the same time, which is two. The second
    // rank has them in another order, the third lacks one.
    std::vector<std::uint32_t> streams;
    if (rank == 1) streams.push_back(r.stream("late"));
    for (const char* name : {"main", "side", "side", "main"})
      if (rank != 2 || std::string(name) != "side") streams.push_back(r.stream(name));
    r.phase(rank == 0 ? "forward" : "backward");
    double at = 0;
    for (const std::uint32_t s : streams) {
      const bool side = rank != 2 && (s % 4 == 2 || s % 4 == 3);
      r.event({"gemm",
               {"model.hpp", static_cast<int>(s)},
               -1,
               s,
               pl::trace_kind::compute,
               side ? 1.0 : at,
               side ? 2.0 : at + 1,
               1u << s});
      at += 2;
    }
    r.event({"wait", {}, -1, 0, pl::trace_kind::waiting, 0.5, 0.75, 0});
    r.memory(pl::memory_kind::pinned_host, pl::tag::dispatch, 12);
    moe::rank_share share;
    share.trace = pl::trace_recorder::merge("", {&r});
    words.push_back(share.words());
  }
  const pl::trace expected = pl::trace_recorder::merge("", all);
  moe::run_result result;
  moe::add_to_result(words, result);
  recorders.clear();
  words.clear();
  REQUIRE(result.trace.has_value());
  CHECK(expected.streams.size() > 4);
  CHECK(result.trace->streams == expected.streams);
  check_same(result.trace->events, expected.events);
  check_same(result.trace->memory, expected.memory);
  check_same(result.trace->phases, expected.phases);
  // The names are not the words': those are gone.
  const moe::run_result copy = result;
  CHECK(std::string(copy.trace->events.front().name) == expected.events.front().name);
}

TEST_CASE("ranks on one machine count time from the same moment, which is past") {
  std::vector<pl::trace_recorder::clock::time_point> origins(4);
  pl::run_ranks(4, [&](pl::thread_communicator& comm) {
    origins[static_cast<std::size_t>(comm.rank())] = moe::common_origin(comm);
  });
  for (const auto origin : origins) {
    CHECK((origin == origins[0]));
    CHECK((origin <= pl::trace_recorder::clock::now()));
  }
}
