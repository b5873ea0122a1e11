// SPDX-License-Identifier: Apache-2.0
//
// The communicator of a dry run beyond the communicator's contract: what it records and counts, and ranks
// that are folded into one another. (tests/contract/dry_communicator_test.cpp holds it to the contract.)
#include <plateau/dry_run/communicator.hpp>

#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/vote.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using dry::action;
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

bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
void require(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}
template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "(nothing was thrown)";
}
void check_success(const pl::dry_ranks& ran) {
  for (const auto& o : ran.left_with) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o);
  }
  CHECK_FALSE(ran.cause);
  for (const std::string& f : ran.findings()) FAIL_CHECK(f);
}
pl::hardware machine(int ranks_per_node) {
  pl::hardware h = plateau_test::slow_machine();
  h.ranks_per_node = ranks_per_node;
  h.launch_seconds = 0.001;
  h.host_exchange_seconds = 0.01;
  h.network_seconds = 0.5;
  return h;
}
std::vector<std::string> host_exchanges_of(const dry::rank_program& p) {
  std::vector<std::string> list;
  for (const dry::instruction& i : p.instructions)
    if (i.what == action::host_exchange)
      list.push_back(p.labels[i.name].name + (" of '" + p.groups[p.host_exchanges[i.index].group].path) +
                     "'");
  return list;
}

} // namespace

TEST_CASE("exchanges, host exchanges and groups are in the program, and counted as by threads") {
  // The same calls on threads and on the dry run.
  const auto program = [](auto& comm, auto& backend) {
    using B = std::remove_reference_t<decltype(backend)>;
    const int me = comm.rank(), n = comm.size();
    pl::device_buffer<float, B> a(backend.device(), 64, tag::dispatch),
        b(backend.device(), 64, tag::dispatch);
    pl::device_buffer<unsigned char, B> scratch(
        backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(n, {20})), tag::workspace);
    auto s = backend.make_stream("main");
    backend.launch(s, elements{64}, pl::fill<float>{1}, out(a.all()));
    backend.launch(s, elements{64}, pl::fill<float>{1}, out(b.all()));
    auto pair = comm.split(me % 2, me);
    comm.exchange(s,
                  {send_to((me + 1) % n, a.first(10 + (me == 1 ? 0 : 1))), send_to(me, a.all().sub(32, 8))},
                  {receive_from((me + n - 1) % n, b.first(10 + ((me + n - 1) % n == 1 ? 0 : 1))),
                   receive_from(me, b.all().sub(32, 8))},
                  "ring");
    pl::all_reduce(backend, comm, s, inout(a.all()), scratch.all(), {20});
    if (pair.size() == 2)
      pair.exchange(s, {send_to(1 - pair.rank(), a.first(5))}, {receive_from(1 - pair.rank(), b.first(5))},
                    "in pairs");
    const std::int64_t mine[] = {me, 7};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(n));
    comm.host_exchange(mine, all, "counts");
    pl::vote(comm, 5, nullptr, "a constructor");
    pl::close_step(backend, comm, s);
    return std::array{comm.counters(), pair.counters(), backend.counters()};
  };
  constexpr int ranks = 4;
  std::array<std::array<pl::counters, 3>, ranks> on_threads, on_nothing;
  pl::run_ranks(ranks, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    on_threads[static_cast<std::size_t>(comm.rank())] = program(comm, backend);
  });
  const auto ran = run_dry(ranks, [&](dry_communicator& comm) {
    backend_t backend(comm);
    on_nothing[static_cast<std::size_t>(comm.rank())] = program(comm, backend);
  });
  check_success(ran);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t c = 0; c < 3; ++c) {
      CAPTURE(r);
      CAPTURE(c);
      const pl::counters &x = on_nothing[r][c], &y = on_threads[r][c];
      CHECK(x.sent_bytes == y.sent_bytes);
      CHECK(x.exchanges == y.exchanges);
      CHECK(x.host_exchanges == y.host_exchanges);
      CHECK(x.launches == y.launches);
      CHECK(x.host_round_trips == y.host_round_trips);
    }
  for (std::size_t r = 0; r < ranks; ++r) {
    const dry::rank_program& p = ran.recorders[r]->program();
    CHECK(host_exchanges_of(p) ==
          std::vector<std::string>{"split of ''", "counts of ''", "a constructor of ''", "close_step of ''"});
    CHECK(p.host_exchanges[0].bytes == 24);
    CHECK(p.host_exchanges[1].bytes == 16);
    CHECK(p.host_exchanges[3].bytes == 0);
    REQUIRE(p.groups.size() == 2);
    CHECK(p.groups[0].members == std::vector<int>{0, 1, 2, 3});
    CHECK(p.groups[0].rank == static_cast<int>(r));
    CHECK(p.groups[1].path == "/0");
    CHECK(p.groups[1].members == (r % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3}));
    CHECK(p.groups[1].rank == static_cast<int>(r / 2));
    std::uint64_t sent = 0;
    for (const dry::exchange_record& e : p.exchanges)
      for (const dry::message& m : e.sends)
        if (m.peer != p.groups[e.group].rank) sent += m.bytes;
    CHECK(sent == on_threads[r][0].sent_bytes + on_threads[r][1].sent_bytes);
    CHECK(p.exchanges.size() == on_threads[r][0].exchanges + on_threads[r][1].exchanges);
  }
  const auto t = pl::predict(ran, machine(2));
  CHECK(t.trouble == "");
  CHECK(t.complete);
  CHECK(t.ranks[1].sent_bytes == on_threads[1][0].sent_bytes + on_threads[1][1].sent_bytes);
}

TEST_CASE("paths name splits alike on all ranks, however they nest; who is in none has none") {
  const auto ran = run_dry(4, [](dry_communicator& comm) {
    auto first = comm.split(0, -comm.rank()), second = comm.split(comm.rank() == 3 ? -1 : 0, 0);
    auto nested = first.split(comm.rank() / 2, 0), later = first.split(0, 0);
    for (dry_communicator* c : {&first, &second, &nested, &later})
      if (c->size() != 0) c->close_step();
  });
  check_success(ran);
  const auto paths = [&](std::size_t r) {
    std::vector<std::string> list;
    for (const dry::group_record& g : ran.recorders[r]->program().groups) list.push_back(g.path);
    return list;
  };
  CHECK(paths(0) == std::vector<std::string>{"", "/0", "/1", "/0/0", "/0/1"});
  CHECK(paths(1) == paths(0));
  CHECK(paths(3) == std::vector<std::string>{"", "/0", "/0/0", "/0/1"});
  const auto& nested = ran.recorders[0]->program().groups[3];
  CHECK(nested.members == std::vector<int>{1, 0}); // ranks of the outermost one, in the order of this one
  CHECK(nested.rank == 1);
  CHECK(pl::predict(ran, machine(4)).complete);
}

TEST_CASE("what is refused is not recorded: the ranks go on") {
  std::string sizes, peer, nobody[5];
  const auto ran = run_dry(2, [&](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> x(backend.device(), 8, tag::other);
    auto s = backend.make_stream("main");
    auto none = comm.split(comm.rank() == 0 ? -1 : 0, 0);
    if (comm.rank() == 0) {
      std::array<std::int64_t, 3> all{};
      sizes = refusal([&] { comm.host_exchange(std::array<std::int64_t, 1>{1}, all, "counts"); });
      peer = refusal([&] { comm.exchange(s, {send_to(2, x.all())}, {}, "dispatch"); });
      nobody[0] = refusal([&] { none.close_step(); });
      nobody[1] = refusal([&] { none.host_exchange({}, {}, "counts"); });
      nobody[2] = refusal([&] { none.exchange(s, {}, {}, "dispatch"); });
      nobody[3] = refusal([&] { none.split(0, 0); });
      nobody[4] = refusal([&] { none.abort("nothing"); });
      require(!comm.cause() && !comm.recorder()->program().ended_by, "a refused abort ends nobody");
    }
    comm.close_step();
  });
  check_success(ran);
  CHECK(has(sizes, "rank 0: counts: room for 3 integers, but 2 ranks give 1 each"));
  CHECK(has(peer, "peer 2 does not exist among 2 ranks"));
  CHECK(has(peer, "dry_run_communicator_test.cpp:"));
  for (const std::string& text : nobody) CHECK(has(text, "communicator of size 0"));
  CHECK(host_exchanges_of(ran.recorders[0]->program()) ==
        std::vector<std::string>{"split of ''", "close_step of ''"});
  CHECK(ran.recorders[0]->program().exchanges.empty());
  CHECK(pl::predict(ran, machine(2)).complete);
}

TEST_CASE("a rank that goes on after an exchange has failed on it has no timeline, and predict() says why") {
  dry_options options;
  options.throw_at = 2;
  options.only_rank = 1;
  const auto ran = run_dry(
      2,
      [](dry_communicator& comm) {
        backend_t backend(comm);
        device<float> x(backend.device(), 8, tag::other);
        auto s = backend.make_stream("main");
        backend.launch(s, elements{8}, pl::fill<float>{}, out(x.all()));
        const int peer = 1 - comm.rank();
        for (int i = 0; i < 3; ++i) try {
            comm.exchange(s, {send_to(peer, x.first(4))}, {receive_from(peer, x.all().sub(4, 4))});
          } catch (const pl::backend_error&) {
          }
      },
      options);
  CHECK(!ran.cause);
  const auto t = pl::predict(ran, machine(2));
  CHECK(!t.complete);
  CHECK(has(t.trouble, "rank 1 failed: plateau: rank 1: 'exchange' on stream 'main'"));
}

TEST_CASE("ranks that name exchanges differently are told, however far one thread is ahead") {
  for (const int late : {0, 1}) {
    const auto ran = run_dry(2, [=](dry_communicator& comm) {
      backend_t backend(comm);
      device<float> x(backend.device(), 8, tag::other);
      auto s = backend.make_stream("main");
      backend.launch(s, elements{8}, pl::fill<float>{}, out(x.all()));
      if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const int peer = 1 - comm.rank();
      for (int i = 0; i < 2000; ++i)
        comm.exchange(s, {send_to(peer, x.first(4))}, {receive_from(peer, x.all().sub(4, 4))},
                      i == 2 && comm.rank() == 1 ? "odd" : "even");
    });
    const auto t = pl::predict(ran, machine(2));
    CHECK(!t.complete);
    CHECK(has(t.trouble, "ranks issue operations in different orders"));
    if (ran.cause) continue; // their threads were close enough to notice
    CHECK(has(t.trouble, "exchange 2 of the outermost communicator is 'even' at"));
    CHECK(has(t.trouble, " on rank 0, but 'odd' at"));
  }
}

TEST_CASE("an exchange finds what it receives written, and what it sends must stay") {
  std::vector<std::string> lines;
  const auto ran = run_dry(2, [&](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 8, tag::dispatch), b(backend.device(), 8, tag::dispatch);
    auto s = backend.make_stream("main"), t = backend.make_stream("side");
    const int peer = 1 - comm.rank();
    comm.exchange(s, {send_to(peer, a.all())}, {receive_from(peer, b.all())}, "unwritten"); // a has no values
    backend.launch(s, elements{8}, pl::scale{2}, inout(b.all()));
    backend.wait(t, backend.record(s));
    comm.exchange(s, {send_to(peer, b.all())}, {receive_from(peer, a.all())}, "dispatch");
    if (comm.rank() == 0) backend.launch(t, elements{8}, pl::fill<float>{}, out(b.all())); // while it is sent
    pl::close_step(backend, comm, s, t);
  });
  CHECK_FALSE(ran.cause);
  const auto all = ran.findings();
  REQUIRE(all.size() == 3);
  CHECK(has(all[0], "rank 0: 'unwritten'"));
  CHECK(has(all[0], "hold no values"));
  CHECK(has(all[1], "writes what 'dispatch'"));
  CHECK(has(all[2], "rank 1: 'unwritten'"));
}

TEST_CASE("random exchanges, sums and integers count and meter as on threads, byte for byte") {
  constexpr int ranks = 3;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    struct counted {
      pl::counters comm, backend;
      std::array<pl::peak, pl::tag_count> peaks;
      pl::peak peak;
    };
    const auto program = [seed](auto& comm, auto& backend) {
      using B = std::remove_reference_t<decltype(backend)>;
      const int me = comm.rank(), n = comm.size();
      std::mt19937 random(seed); // the same on all ranks
      const auto draw = [&](index_t most) {
        return std::uniform_int_distribution<index_t>(0, most - 1)(random);
      };
      auto s = backend.make_stream("main");
      for (int step = 0; step < 12; ++step) {
        const tag purpose = pl::all_tags[static_cast<std::size_t>(draw(pl::tag_count))];
        backend.device().meter().phase(step % 2 == 0 ? "even" : "odd");
        const index_t length = draw(300);
        pl::device_buffer<float, B> a(backend.device(), 300 * n, purpose),
            b(backend.device(), 300 * n, purpose);
        pl::device_buffer<unsigned char, B> scratch(
            backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(n, {50})), tag::workspace);
        backend.launch(s, elements{a.size()}, pl::fill<float>{1}, out(a.all()));
        switch (draw(4)) {
        case 0: { // rows (from, to)
          std::vector<index_t> rows(static_cast<std::size_t>(n * n));
          for (index_t& r : rows) r = draw(3) == 0 ? 0 : draw(100);
          std::vector<pl::send_op> sends;
          std::vector<pl::receive_op> receives;
          for (int p = 0; p < n; ++p) {
            sends.push_back(send_to(p, a.all().sub(300 * p, rows[static_cast<std::size_t>(me * n + p)])));
            receives.push_back(
                receive_from(p, b.all().sub(300 * p, rows[static_cast<std::size_t>(p * n + me)])));
          }
          comm.exchange(s, sends, receives, "rows");
          break;
        }
        case 1:
          pl::all_reduce(backend, comm, s, inout(a.first(length)), scratch.all(), {50});
          break;
        case 2: {
          std::vector<index_t> counts(static_cast<std::size_t>(n));
          index_t total = 0;
          for (index_t& c : counts) total += c = draw(100);
          const index_t mine = counts[static_cast<std::size_t>(me)];
          pl::reduce_scatter(backend, comm, s, in(a.first(total)), out(b.first(mine)), counts, scratch.all(),
                             {50});
          pl::all_gather(backend, comm, s, in(b.first(mine)), out(a.first(total)), counts);
          break;
        }
        case 3: {
          const std::vector<std::int64_t> mine(static_cast<std::size_t>(length));
          std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(n));
          comm.host_exchange(mine, all, "integers");
          break;
        }
        }
        pl::close_step(backend, comm, s);
      }
      counted c{comm.counters(), backend.counters(), {}, backend.device().meter().peak()};
      for (const tag t : pl::all_tags)
        c.peaks[static_cast<std::size_t>(t)] = backend.device().meter().peak(t);
      return c;
    };
    std::array<counted, ranks> real, none;
    pl::run_ranks(ranks, [&](pl::thread_communicator& comm) {
      pl::host_backend backend;
      real[static_cast<std::size_t>(comm.rank())] = program(comm, backend);
    });
    const auto ran = run_dry(ranks, [&](dry_communicator& comm) {
      backend_t backend(comm);
      none[static_cast<std::size_t>(comm.rank())] = program(comm, backend);
    });
    check_success(ran);
    CHECK(pl::predict(ran, machine(2)).trouble == "");
    for (std::size_t r = 0; r < ranks; ++r) {
      CAPTURE(r);
      CHECK(none[r].comm.sent_bytes == real[r].comm.sent_bytes);
      CHECK(none[r].comm.exchanges == real[r].comm.exchanges);
      CHECK(none[r].comm.host_exchanges == real[r].comm.host_exchanges);
      CHECK(none[r].backend.launches == real[r].backend.launches);
      CHECK(none[r].backend.copied_bytes == real[r].backend.copied_bytes);
      CHECK(none[r].peak.bytes == real[r].peak.bytes);
      CHECK(none[r].peak.held == real[r].peak.held);
      CHECK(std::string(none[r].peak.phase) == real[r].peak.phase);
      for (std::size_t t = 0; t < pl::tag_count; ++t) {
        CHECK(none[r].peaks[t].bytes == real[r].peaks[t].bytes);
        CHECK(none[r].peaks[t].held == real[r].peaks[t].held);
        CHECK(std::string(none[r].peaks[t].phase) == real[r].peaks[t].phase);
      }
    }
  }
}

TEST_CASE("slow is not stuck: exchanges of one rank restart the deadlines of those who wait for it") {
  const auto ran = run_dry(2,
                           [](dry_communicator& comm) {
                             backend_t backend(comm);
                             device<float> x(backend.device(), 8, tag::other);
                             auto s = backend.make_stream("main");
                             backend.launch(s, elements{8}, pl::fill<float>{}, out(x.all()));
                             for (int i = 0; i < 20; ++i) {
                               if (comm.rank() == 0)
                                 std::this_thread::sleep_for(std::chrono::milliseconds(100));
                               comm.exchange(s, {send_to(comm.rank(), x.first(4))},
                                             {receive_from(comm.rank(), x.all().sub(4, 4))});
                             }
                             comm.close_step();
                           },
                           {}, {std::chrono::milliseconds(1000)});
  check_success(ran);
}

// --- folding ---

namespace {

// What each rank of a run has seen, by rank; of ranks that others stand for, nothing.
struct seen {
  explicit seen(int ranks)
      : peak(static_cast<std::size_t>(ranks)), counted(static_cast<std::size_t>(ranks)) {}
  std::vector<std::size_t> peak;
  std::vector<pl::counters> counted;
};

// A step of exchanges with neighbours and sums over all, the same on all ranks.
struct symmetrical {
  bool folds;
  int keys; // so many classes
  seen* to;

  void operator()(dry_communicator& comm) const {
    backend_t backend(comm);
    const int me = comm.rank(), n = comm.size();
    auto row = comm.split(me / 2, me), column = comm.split(me % 2, me);
    device<float> a(backend.device(), 512, tag::activations), b(backend.device(), 512, tag::activations);
    device<unsigned char> scratch(
        backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(n, {100})), tag::workspace);
    pl::vote(comm, 1, nullptr, "the model");
    if (folds && !comm.fold(static_cast<std::uint64_t>(me % keys))) return;
    auto s = backend.make_stream("main"), t = backend.make_stream("moves");
    backend.recorder().mark("step begins");
    for (int step = 0; step < 3; ++step) {
      device<float> passing(backend.device(), 64, tag::dispatch);
      backend.launch(s, elements{512}, pl::fill<float>{1}, out(a.all()));
      backend.wait(t, backend.record(s));
      comm.exchange(t, {send_to((me + 1) % n, a.all())}, {receive_from((me + n - 1) % n, b.all())}, "ring");
      row.exchange(t, {send_to(1 - row.rank(), a.first(64))}, {receive_from(1 - row.rank(), passing.all())},
                   "row");
      backend.wait(s, backend.record(t));
      backend.launch(s, elements{512}, pl::scale{3}, inout(a.all()));
      pl::all_reduce(backend, comm, s, inout(b.all()), scratch.all(), {100});
      const std::int64_t mine[] = {step};
      std::vector<std::int64_t> all(static_cast<std::size_t>(n));
      comm.host_exchange(mine, all, "lengths");
      pl::close_step(backend, comm, s, t);
    }
    column.close_step();
    backend.recorder().mark("step ends");
    to->counted[static_cast<std::size_t>(me)] = comm.counters();
    to->peak[static_cast<std::size_t>(me)] = backend.device().meter().peak().bytes;
  }
};
void check_same(const dry::rank_account& a, const dry::rank_account& b) {
  CHECK(a.seconds == b.seconds);
  CHECK(a.compute_busy == b.compute_busy);
  CHECK(a.transfer_busy == b.transfer_busy);
  CHECK(a.exposed_transfer == b.exposed_transfer);
  CHECK(a.host_blocked == b.host_blocked);
  CHECK(a.operations == b.operations);
  CHECK(a.exchanges == b.exchanges);
  CHECK(a.host_exchanges == b.host_exchanges);
  CHECK(a.sent_bytes == b.sent_bytes);
}
void check_same(const dry::rank_times& a, const dry::rank_times& b) {
  check_same(static_cast<const dry::rank_account&>(a), static_cast<const dry::rank_account&>(b));
  REQUIRE(a.marks.size() == b.marks.size());
  for (std::size_t i = 0; i < a.marks.size(); ++i) check_same(a.marks[i].so_far, b.marks[i].so_far);
}

} // namespace

TEST_CASE("folded: the same peaks, counters and times as every rank by itself") {
  for (const int ranks : {2, 4, 8})
    for (const int keys : {1, 2}) { // where nodes have two ranks, even and odd ones differ
      CAPTURE(ranks);
      CAPTURE(keys);
      seen alone(ranks), folded(ranks);
      const auto whole = run_dry(ranks, symmetrical{false, keys, &alone});
      const auto few = run_dry(ranks, symmetrical{true, keys, &folded});
      check_success(whole);
      check_success(few);
      const pl::hardware h = machine(keys == 1 ? ranks : 2);
      const auto t = pl::predict(whole, h), u = pl::predict(few, h);
      CHECK(t.trouble == "");
      CHECK(u.trouble == "");
      REQUIRE(t.complete);
      REQUIRE(u.complete);
      CHECK(t.seconds == u.seconds);
      REQUIRE(u.ranks.size() == static_cast<std::size_t>(keys));
      for (int r = 0; r < ranks; ++r) {
        CAPTURE(r);
        const auto i = static_cast<std::size_t>(r), first = static_cast<std::size_t>(r % keys);
        CHECK(few.stands_for[i] == r % keys);
        CHECK(whole.stands_for[i] == r);
        check_same(t.ranks[i], u.ranks[first]);
        CHECK(alone.peak[i] == folded.peak[first]);
        CHECK(folded.peak[i] == (r < keys ? alone.peak[i] : 0));
        CHECK(alone.counted[i].host_exchanges == folded.counted[first].host_exchanges);
        CHECK(alone.counted[i].exchanges == folded.counted[first].exchanges);
        CHECK(alone.counted[i].sent_bytes == folded.counted[first].sent_bytes);
      }
    }
}

TEST_CASE("fold: who is alike: the same key and the same past, up to peers") {
  // Rank 4 has another key, ranks 2 and 5 hold more, rank 3 has given more integers in its group.
  std::array<std::atomic<int>, 6> went_on{};
  const auto ran = run_dry(6, [&](dry_communicator& comm) {
    backend_t backend(comm);
    const int me = comm.rank();
    auto by_itself = comm.split(me, 0);
    const device<float> x(backend.device(), me == 2 || me == 5 ? 100 : 10, tag::other);
    const std::vector<std::int64_t> mine(me == 3 ? 2 : 1);
    std::vector<std::int64_t> all(mine.size());
    by_itself.host_exchange(mine, all);
    went_on[static_cast<std::size_t>(me)] = comm.fold(me == 4 ? 1 : 0) ? 1 : 0;
    CHECK(comm.stands_for() == std::vector<int>{0, 0, 2, 3, 4, 2});
  });
  check_success(ran);
  CHECK(ran.stands_for == std::vector<int>{0, 0, 2, 3, 4, 2});
  for (std::size_t r = 0; r < 6; ++r) CHECK(went_on[r] == (ran.stands_for[r] == static_cast<int>(r) ? 1 : 0));
}

TEST_CASE("fold where no program is recorded: the key alone tells ranks apart") {
  dry_options options;
  options.record_program = false;
  const auto ran = run_dry(
      4,
      [&](dry_communicator& comm) {
        backend_t backend(comm);
        const device<float> x(backend.device(), 10 + comm.rank(), tag::other);
        if (!comm.fold(comm.rank() == 2 ? 1 : 0)) return;
        comm.close_step();
      },
      options);
  check_success(ran);
  CHECK(ran.stands_for == std::vector<int>{0, 0, 2, 0});
}

TEST_CASE("folded host exchanges give every rank's integers, in every communicator's order of ranks") {
  const auto ran = run_dry(6, [](dry_communicator& comm) {
    const int me = comm.rank();
    auto reversed = comm.split(0, -me);          // 5 4 3 2 1 0
    auto half = comm.split(me / 3, 0);           // 0 1 2 and 3 4 5
    if (!comm.fold(me % 3 == 2 ? 1 : 0)) return; // 0 1 3 4 like 0, 2 5 like 2
    const std::int64_t v = me % 3 == 2 ? 70 : 30;
    const std::int64_t mine[] = {v, v + 1};
    const auto all_of = [&](dry_communicator& c) {
      std::vector<std::int64_t> all(2 * static_cast<std::size_t>(c.size()));
      const auto before = c.counters().host_exchanges;
      c.host_exchange(mine, all, "counts");
      require(c.counters().host_exchanges == before + 1, "one host exchange");
      return all;
    };
    using list = std::vector<std::int64_t>;
    require(all_of(comm) == list{30, 31, 30, 31, 70, 71, 30, 31, 30, 31, 70, 71}, "all six");
    require(all_of(reversed) == list{70, 71, 30, 31, 30, 31, 70, 71, 30, 31, 30, 31}, "the other way round");
    require(all_of(half) == list{30, 31, 30, 31, 70, 71}, "a half");
    std::vector<std::int64_t> few(3);
    const std::string text = refusal([&] { comm.host_exchange(mine, few, "counts"); });
    require(text.find("room for 3 integers, but 6 ranks give 2 each") != std::string::npos,
            "the room is checked");
    comm.close_step();
  });
  check_success(ran);
  CHECK(ran.stands_for == std::vector<int>{0, 0, 2, 0, 0, 2});
  CHECK(pl::predict(ran, machine(6)).trouble == "");
}

TEST_CASE("folded: groups that have nothing in common meet by themselves, as where nothing is folded") {
  // Groups of four: the first one meets more often, each with numbers of its own, and with more of them.
  const auto program = [](dry_communicator& comm, bool folds) {
    const int me = comm.rank(), group = me / 4;
    auto four = comm.split(group, me);
    auto two = four.split(me % 2, me);
    auto even = comm.split(me % 2 == 0 ? 0 : -1, me);
    if (folds && !comm.fold(static_cast<std::uint64_t>(group * 2 + me % 2))) return;
    using list = std::vector<std::int64_t>;
    const auto all_of = [](dry_communicator& c, const list& mine) {
      list all(mine.size() * static_cast<std::size_t>(c.size()));
      c.host_exchange(mine, all, "numbers");
      return all;
    };
    const std::int64_t v = 10 * group + me % 2, w = v + 1 - 2 * (me % 2);
    for (int i = 0; i <= group; ++i) {
      require(all_of(four, list(static_cast<std::size_t>(i + 1), v)).size() ==
                  4 * static_cast<std::size_t>(i + 1),
              "of the four");
      if (me % 2 == 1) require(all_of(two, {v}) == list{v, v}, "of the two");
    }
    require(all_of(four, {v}) == (me % 2 == 0 ? list{v, w, v, w} : list{w, v, w, v}), "in order");
    if (me % 2 == 0) require(all_of(even, {v}) == list{0, 0, 10, 10, 20, 20}, "of the even ones");
    if (group == 1) four.close_step();
    comm.close_step();
  };
  const auto whole = run_dry(12, [&](dry_communicator& comm) { program(comm, false); });
  const auto few = run_dry(12, [&](dry_communicator& comm) { program(comm, true); });
  check_success(whole);
  check_success(few);
  CHECK(few.stands_for == std::vector<int>{0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9});
  const auto t = pl::predict(whole, machine(12)), u = pl::predict(few, machine(12));
  CHECK(t.trouble == "");
  CHECK(u.trouble == "");
  REQUIRE(u.ranks.size() == 6);
  CHECK(t.seconds == u.seconds);
  for (const dry::rank_times& r : u.ranks) check_same(t.ranks[static_cast<std::size_t>(r.rank)], r);
}

TEST_CASE("fold is once, of the outermost communicator, and splits come before it") {
  std::string again, of_a_part, split, nobody;
  const auto ran = run_dry(2, [&](dry_communicator& comm) {
    auto part = comm.split(0, 0);
    auto none = comm.split(comm.rank() == 0 ? -1 : 0, 0);
    const std::string early = refusal([&] { part.fold(0); });
    if (!comm.fold(static_cast<std::uint64_t>(comm.rank()))) return;
    if (comm.rank() == 0) {
      of_a_part = early;
      again = refusal([&] { comm.fold(0); });
      split = refusal([&] { part.split(0, 0); });
      nobody = refusal([&] { none.close_step(); });
    }
    comm.close_step();
  });
  check_success(ran);
  CHECK(has(of_a_part, "rank 0: fold: once, and of the outermost communicator"));
  CHECK(has(again, "rank 0: fold: once, and of the outermost communicator"));
  CHECK(has(split, "rank 0: split: after fold"));
  CHECK(has(nobody, "communicator of size 0"));
  CHECK(ran.recorders[0]->program().host_exchanges.size() == 3); // two splits, a step
}

TEST_CASE("P3: a rank of a folded run fails: all who go on end with its cause, and predict() says so") {
  enum class ending { throws, latches, returns, differs, stays };
  for (const ending how : {ending::throws, ending::latches, ending::returns, ending::differs, ending::stays})
    for (const int failing : {0, 1, 2}) {
      CAPTURE(static_cast<int>(how));
      CAPTURE(failing);
      const auto ran = run_dry(6, [=](dry_communicator& comm) {
        backend_t backend(comm);
        device<float> x(backend.device(), 64, tag::other);
        auto s = backend.make_stream("main");
        if (!comm.fold(static_cast<std::uint64_t>(comm.rank() % 3))) {
          if (how == ending::stays && comm.rank() == failing + 3) throw std::runtime_error("injected");
          return;
        }
        for (int step = 0; step < 5; ++step) {
          backend.launch(s, elements{64}, pl::fill<float>{}, out(x.all()));
          std::vector<std::int64_t> mine(3), all(18);
          if (step == 2 && comm.rank() == failing) {
            if (how == ending::throws) throw std::runtime_error("injected");
            if (how == ending::latches) comm.latch({pl::failure::kind::other, "injected"});
            if (how == ending::returns) return;
            if (how == ending::differs) mine.resize(2), all.resize(12);
          }
          comm.host_exchange(mine, all, "counts");
          pl::close_step(backend, comm, s);
        }
      });
      REQUIRE(ran.cause);
      const auto t = pl::predict(ran, machine(6));
      CHECK_FALSE(t.complete);
      const std::string text = how == ending::returns   ? "has left"
                               : how == ending::differs ? "gives 2"
                                                        : "injected";
      CHECK(has(t.trouble, text));
      CHECK(has(t.trouble, "rank " + std::to_string(how == ending::stays ? failing + 3 : failing)));
      for (int r = 0; r < 6; ++r) {
        CAPTURE(r);
        const auto& o = ran.left_with[static_cast<std::size_t>(r)];
        if (how == ending::stays) { // the others may have been done before
          if (r == failing + 3) CHECK(o.has_value());
          continue;
        }
        // Who does not go on may be leaving the fold still, and then ends with the others, or have left it.
        if (r < 3) CHECK(o.has_value() == !(how == ending::returns && r == failing));
        if (o && (r != failing || how != ending::throws)) CHECK(o->failed_rank == failing);
        if (o) CHECK(has(o->text, text));
      }
      CHECK(ran.findings().empty());
    }
}
