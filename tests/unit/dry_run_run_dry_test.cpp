// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a dry run: what each leaves behind, faults on one of them, and that nothing of it depends on how
// their threads were scheduled.
#include <plateau/dry_run/run_dry.hpp>

#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using pl::dry_communicator;
using pl::dry_options;
using pl::elements;
using pl::in;
using pl::index_t;
using pl::inout;
using pl::out;
using pl::run_dry;
using pl::tag;
using backend_t = pl::dry_run<pl::host_backend>;
template <class T> using device = pl::device_buffer<T, backend_t>;
template <class T> using pinned = pl::pinned_buffer<T, backend_t>;

bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
pl::hardware machine() {
  pl::hardware h = plateau_test::slow_machine();
  h.launch_seconds = 0.01;
  h.host_exchange_seconds = 0.1;
  h.network_seconds = 0.3;
  return h;
}

// What a rank held in the end, however it ended, and at most.
struct held {
  std::size_t device = ~std::size_t{0}, pinned = ~std::size_t{0}, device_peak = 0, pinned_peak = 0;
};
// Declared before everything that takes memory, so that it goes last.
struct watch {
  backend_t& backend;
  held& to;
  ~watch() {
    to = {backend.device().meter().current(), backend.pinned().meter().current(),
          backend.device().meter().peak().bytes, backend.pinned().meter().peak().bytes};
  }
};

// Two steps on any number of ranks: rows sent round by their counts, sums over all, a state that streams
// through the device. `pause` is called between all calls.
template <class Pause> void two_steps(dry_communicator& comm, std::vector<held>& left, Pause pause) {
  backend_t backend(comm);
  const int me = comm.rank(), n = comm.size();
  const watch at_end{backend, left[static_cast<std::size_t>(me)]};
  device<float> x(backend.device(), 64, tag::activations), y(backend.device(), 64 * n, tag::dispatch),
      state(backend.device(), 32, tag::optimizer);
  device<std::int64_t> counts(backend.device(), n, tag::dispatch);
  pinned<std::int64_t> counts_here(backend.pinned(), n, tag::dispatch);
  pinned<float> master(backend.pinned(), 32, tag::optimizer);
  device<unsigned char> scratch(
      backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(n, {40})), tag::workspace);
  auto half = comm.split(me % 2, 0);
  auto s = backend.make_stream("compute"), t = backend.make_stream("moves");
  std::vector<std::int64_t> mine(static_cast<std::size_t>(n)), all(mine.size() * mine.size());
  backend.host_access(out(master.all()));
  for (int step = 0; step < 2; ++step) {
    backend.recorder().mark("a step");
    pause();
    backend.launch(s, elements{64}, pl::fill<float>{1}, out(x.all()));
    backend.launch(s, elements{n}, pl::fill<std::int64_t>{0}, out(counts.all()));
    pause();
    backend.copy(s, in(counts.all()), out(counts_here.all()));
    backend.fetch(backend.record(s), in(counts_here.all()), std::span(mine), "counts");
    pause();
    comm.host_exchange(mine, all, "counts of all");
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    index_t from = 0, to = 0;
    for (int p = 0; p < n; ++p) {
      const index_t out_rows = mine[static_cast<std::size_t>(p)],
                    in_rows = all[static_cast<std::size_t>(p * n + me)];
      sends.push_back(send_to(p, x.all().sub(from, out_rows)));
      receives.push_back(receive_from(p, y.all().sub(to, in_rows)));
      from += out_rows;
      to += in_rows;
    }
    pause();
    backend.wait(t, backend.record(s));
    comm.exchange(t, sends, receives, "dispatch");
    pause();
    backend.copy(t, in(master.all()), out(state.all()));
    backend.wait(s, backend.record(t));
    pause();
    backend.launch(s, elements{to}, pl::scale{2}, inout(y.first(to)));
    pl::all_reduce(backend, comm, s, inout(x.all()), scratch.all(), {40});
    pause();
    half.host_exchange({}, {}, "halves meet");
    backend.launch(s, elements{32}, pl::scale{0.5F}, inout(state.all()));
    pause();
    backend.wait(t, backend.record(s));
    backend.copy(t, in(state.all()), out(master.all()));
    pause();
    pl::close_step(backend, comm, s, t);
  }
}
// Rank r sends (3 r + p) % 5 rows to p, one more in the second step.
bool scenario(const pl::dry_fetch& f) {
  if (std::string(f.label) != "counts") return false;
  for (std::size_t p = 0; p < f.into.size() / f.element_bytes; ++p) {
    const std::int64_t value = (3 * f.rank + static_cast<int>(p)) % 5 + static_cast<std::int64_t>(f.number);
    std::memcpy(f.into.data() + p * f.element_bytes, &value, sizeof value);
  }
  return true;
}
dry_options with_scenario() {
  dry_options options;
  options.scenario = scenario;
  return options;
}
const auto no_pause = [] {};

} // namespace

TEST_CASE("each rank leaves its recorder; nobody fails, nobody leaks, nothing is found") {
  std::vector<held> left(4);
  const auto ran = run_dry(
      4, [&](dry_communicator& comm) { two_steps(comm, left, no_pause); }, with_scenario());
  CHECK_FALSE(ran.cause);
  CHECK(ran.stands_for == std::vector<int>{0, 1, 2, 3});
  REQUIRE(ran.recorders.size() == 4);
  REQUIRE(ran.left_with.size() == 4);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(ran.recorders[r]->rank() == static_cast<int>(r));
    CHECK(std::string(ran.recorders[r]->owner()) == "rank " + std::to_string(r));
    CHECK_FALSE(ran.left_with[r]);
    CHECK(left[r].device == 0);
    CHECK(left[r].pinned == 0);
    CHECK(left[r].device_peak > 0);
  }
  for (const std::string& f : ran.findings()) FAIL_CHECK(f);
  CHECK(pl::predict(ran, machine()).complete);
  std::string text;
  try {
    run_dry(0, [](dry_communicator&) {});
  } catch (const pl::config_error& e) {
    text = e.what();
  }
  CHECK(has(text, "0 ranks"));
}

TEST_CASE("findings are sentences, rank by rank") {
  const auto ran = run_dry(3, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> x(backend.device(), 8, tag::other);
    auto s = backend.make_stream("main");
    if (comm.rank() != 1) backend.launch(s, elements{8}, pl::scale{2}, inout(x.all()));
    if (comm.rank() == 2) comm.abort("enough"); // they are kept however the run ended
    comm.close_step();
  });
  const auto all = ran.findings();
  REQUIRE(all.size() == 2);
  CHECK(has(all[0], "plateau: rank 0: "));
  CHECK(has(all[1], "plateau: rank 2: "));
  CHECK(has(all[1], "dry_run_run_dry_test.cpp:"));
  REQUIRE(ran.cause);
  CHECK(has(ran.cause->text, "enough"));
}

TEST_CASE("P1: a rank has no memory for its first step: every rank gets the cause, with its numbers") {
  const auto ran = run_dry(4, [](dry_communicator& comm) {
    backend_t backend(comm);
    if (comm.rank() == 3) backend.device().meter().limit(1000);
    const device<float> x(backend.device(), 256, tag::optimizer);
    comm.close_step();
    throw std::logic_error("the step goes on without rank 3");
  });
  for (std::size_t r = 0; r < 4; ++r) {
    REQUIRE(ran.left_with[r]);
    CHECK(has(ran.left_with[r]->text, "rank 3: optimizer asked for 1024 bytes of device memory"));
    CHECK(ran.left_with[r]->what == (r == 3 ? pl::failure::kind::budget : pl::failure::kind::collective));
    if (r != 3) CHECK(ran.left_with[r]->failed_rank == 3);
  }
  CHECK(has(pl::predict(ran, machine()).trouble, "optimizer asked for 1024 bytes"));
}

TEST_CASE(
    "throw_at: whichever operation of one rank fails, all end, nothing leaks, and predict() says which") {
  std::vector<held> left(4);
  const auto whole = run_dry(
      4, [&](dry_communicator& comm) { two_steps(comm, left, no_pause); }, with_scenario());
  const std::uint64_t operations = whole.recorders[2]->operations();
  CHECK(operations > 20);
  for (std::uint64_t k = 0; k < operations; ++k) {
    CAPTURE(k);
    dry_options options = with_scenario();
    options.throw_at = k;
    options.only_rank = 2;
    left.assign(4, {});
    const auto ran = run_dry(
        4, [&](dry_communicator& comm) { two_steps(comm, left, no_pause); }, options);
    const std::string expected = "operation " + std::to_string(k) + " fails, as the dry run was told";
    for (std::size_t r = 0; r < 4; ++r) {
      CAPTURE(r);
      REQUIRE(ran.left_with[r]);
      CHECK(has(ran.left_with[r]->text, expected));
      CHECK(ran.left_with[r]->what == (r == 2 ? pl::failure::kind::backend : pl::failure::kind::collective));
      if (r != 2) CHECK(ran.left_with[r]->failed_rank == 2);
      CHECK(left[r].device == 0);
      CHECK(left[r].pinned == 0);
    }
    CHECK(has(ran.left_with[2]->text, "plateau: rank 2: '"));
    if (k != 0) CHECK(has(ran.left_with[2]->text, "pp:")); // the line, here or in a collective
    for (const std::string& f : ran.findings()) FAIL_CHECK(f);
    const auto t = pl::predict(ran, machine());
    CHECK_FALSE(t.complete);
    CHECK(has(t.trouble, "rank 2"));
    CHECK(has(t.trouble, expected)); // and not what nobody has received
  }
}

TEST_CASE("drop_wait on one rank: the others have no findings") {
  std::vector<held> left(3);
  for (const int only : {0, 2}) {
    dry_options options = with_scenario();
    options.only_rank = only;
    options.drop_wait = 2; // compute waits for moves, after the dispatch
    const auto ran = run_dry(
        3, [&](dry_communicator& comm) { two_steps(comm, left, no_pause); }, options);
    CHECK_FALSE(ran.cause);
    const auto all = ran.findings();
    CHECK_FALSE(all.empty());
    for (const std::string& f : all) CHECK(has(f, "plateau: rank " + std::to_string(only) + ": "));
    for (int r = 0; r < 3; ++r)
      CHECK(ran.recorders[static_cast<std::size_t>(r)]->dropped().has_value() == (r == only));
  }
}

TEST_CASE("a fetch that nobody answers ends the run with its name") {
  std::vector<held> left(2);
  const auto ran = run_dry(2, [&](dry_communicator& comm) { two_steps(comm, left, no_pause); });
  for (const auto& o : ran.left_with) {
    REQUIRE(o);
    CHECK(has(o->text, "fetch of 'counts' at "));
    CHECK(has(o->text, "dry_run_run_dry_test.cpp:"));
  }
  CHECK(has(pl::predict(ran, machine()).trouble, "fetch of 'counts'"));
}

TEST_CASE(
    "a hundred runs with other timing of the threads: the same findings, peaks and times to the last bit") {
  struct outcome {
    std::vector<std::string> findings;
    std::vector<std::size_t> peaks;
    std::vector<dry::rank_times> times;
    double seconds = 0;
  };
  const auto run = [](std::uint32_t seed) {
    dry_options options = with_scenario();
    options.drop_wait = 2; // so that there is something to find
    std::vector<held> left(4);
    const auto ran = run_dry(
        4,
        [&](dry_communicator& comm) {
          std::mt19937 random(4 * seed + static_cast<std::uint32_t>(comm.rank()));
          two_steps(comm, left, [&] {
            const auto length = std::uniform_int_distribution<int>(0, 150)(random);
            if (seed != 0 && length > 50) std::this_thread::sleep_for(std::chrono::microseconds(length));
          });
        },
        options);
    REQUIRE_FALSE(ran.cause);
    outcome o;
    o.findings = ran.findings();
    for (const held& h : left) o.peaks.insert(o.peaks.end(), {h.device_peak, h.pinned_peak});
    const auto t = pl::predict(ran, machine(), {7, 0.2, false});
    REQUIRE(t.complete);
    o.times = t.ranks;
    o.seconds = t.seconds;
    return o;
  };
  const outcome expected = run(0);
  CHECK_FALSE(expected.findings.empty());
  CHECK(expected.seconds > 0);
  const auto same = [](const dry::rank_account& a, const dry::rank_account& b) {
    return a.seconds == b.seconds && a.compute_busy == b.compute_busy && a.transfer_busy == b.transfer_busy &&
           a.exposed_transfer == b.exposed_transfer && a.host_blocked == b.host_blocked &&
           a.flops == b.flops && a.operations == b.operations && a.exchanges == b.exchanges &&
           a.host_exchanges == b.host_exchanges && a.host_round_trips == b.host_round_trips &&
           a.sent_bytes == b.sent_bytes;
  };
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    const outcome o = run(seed);
    REQUIRE(o.findings == expected.findings);
    REQUIRE(o.peaks == expected.peaks);
    REQUIRE(o.seconds == expected.seconds);
    REQUIRE(o.times.size() == expected.times.size());
    for (std::size_t r = 0; r < o.times.size(); ++r) {
      REQUIRE(same(o.times[r], expected.times[r]));
      REQUIRE(o.times[r].marks.size() == 2);
      for (std::size_t i = 0; i < 2; ++i)
        REQUIRE(same(o.times[r].marks[i].so_far, expected.times[r].marks[i].so_far));
    }
  }
}
