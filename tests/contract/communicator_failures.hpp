// SPDX-License-Identifier: Apache-2.0
//
// What every communicator must do when a rank fails: all ranks end, with the first cause. The deadline is a
// minute, so a rank that is only freed by it shows in the text of its failure; where the deadline itself is
// tested it is short. Fixture as in communicator_contract.hpp; ranks whose outcome is not known here are left
// out of `outcomes` by the fixture.
#pragma once

#include "communicator_contract.hpp"

#include <plateau/close_step.hpp>
#include <plateau/vote.hpp>

#include <initializer_list>
#include <optional>
#include <random>
#include <stdexcept>

namespace contract {

using outcomes_type = std::vector<std::optional<pl::failure>>;
inline constexpr milliseconds a_minute{60'000};

// Runs f(comm) on each rank; nobody may be freed by the deadline alone.
template <class Fixture, class F> outcomes_type run_promptly(int ranks, F f) {
  const auto begun = std::chrono::steady_clock::now();
  outcomes_type outcomes = Fixture::run(ranks, f, a_minute);
  CHECK(std::chrono::steady_clock::now() - begun < a_minute / 2);
  return outcomes;
}

// Every rank but `failed` has got a collective_error that names it and contains `text`.
inline void check_cause(const outcomes_type& outcomes, int failed, const std::string& text) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    CAPTURE(r);
    if (static_cast<int>(r) == failed) continue;
    REQUIRE(outcomes[r].has_value());
    CAPTURE(outcomes[r]->text);
    CHECK(outcomes[r]->what == pl::failure::kind::collective);
    CHECK(outcomes[r]->failed_rank == failed);
    CHECK(outcomes[r]->text.find(text) != std::string::npos);
  }
}

enum class ending { throws_on_host, throws_on_stream, throws_on_other_stream, aborts, returns, sleeps };
inline constexpr int operations = 12;

// Twelve operations of all kinds on four ranks; rank 2 ends at the k-th in the given way.
template <class Fixture> outcomes_type program(int k, ending how, milliseconds deadline) {
  using backend_t = typename Fixture::backend;
  const auto begun = std::chrono::steady_clock::now();
  outcomes_type outcomes = Fixture::run(
      4,
      [=](auto& comm) {
        const int me = comm.rank();
        backend_t backend;
        const pl::index_t n = 4096;
        auto pair = comm.split(me % 2, 0); // 0 2 and 1 3
        pl::device_buffer<float, backend_t> a(backend.device(), n, pl::tag::other);
        pl::device_buffer<float, backend_t> b(backend.device(), n, pl::tag::other);
        pl::device_buffer<unsigned char, backend_t> scratch(
            backend.device(), pl::index_t(pl::reduce_scratch_bytes<float>(4)), pl::tag::other);
        pl::pinned_buffer<float, backend_t> h(backend.pinned(), n, pl::tag::other);
        auto moves = backend.make_stream("moves"), compute = backend.make_stream("compute");
        if constexpr (has_data<Fixture>) std::fill_n(h.data(), n, 1.0F);
        backend.copy(compute, in(h.all()), out(a.all()));
        backend.copy(compute, in(h.all()), out(b.all()));
        for (int op = 0; op < operations; ++op) {
          if (me == 2 && op == k) {
            const auto boom = [] { throw std::runtime_error("injected"); };
            if (how == ending::throws_on_host) boom();
            if (how == ending::throws_on_stream) backend.host_task(moves, boom);
            if (how == ending::throws_on_other_stream) backend.host_task(compute, boom);
            if (how == ending::aborts) comm.abort("injected");
            if (how == ending::returns) return;
            if (how == ending::sleeps) std::this_thread::sleep_for(3 * deadline);
          }
          switch (op % 6) {
          case 0:
            backend.wait(moves, backend.record(compute));
            comm.exchange(moves, {send_to((me + 1) % 4, a.all())}, {receive_from((me + 3) % 4, b.all())});
            break;
          case 1:
            backend.wait(compute, backend.record(moves));
            backend.copy(compute, in(b.all()), out(a.all()));
            break;
          case 2:
            backend.wait(moves, backend.record(compute));
            pl::all_reduce(backend, comm, moves, inout(a.all()), scratch.all());
            break;
          case 3: {
            const std::int64_t mine[] = {op};
            std::int64_t all[4];
            comm.host_exchange(mine, all);
            break;
          }
          case 4:
            pair.exchange(moves, {send_to(1 - pair.rank(), a.all())},
                          {receive_from(1 - pair.rank(), b.all())}, "in pairs");
            break;
          case 5:
            backend.wait(compute, backend.record(moves));
            backend.wait(backend.record(compute));
            break;
          }
        }
        comm.close_step();
      },
      deadline);
  CHECK(std::chrono::steady_clock::now() - begun < a_minute / 2);
  return outcomes;
}

template <class Fixture> void one_rank_ends(std::initializer_list<ending> ways) {
  for (const ending how : ways)
    for (int k = 0; k < operations; ++k)
      for (int repeat = 0; repeat < 3; ++repeat) {
        CAPTURE(int(how));
        CAPTURE(k);
        const auto outcomes = program<Fixture>(k, how, a_minute);
        check_cause(outcomes, 2, "injected");
        CHECK((outcomes.size() < 3 || outcomes[2].has_value()));
      }
}

template <class Fixture> void one_rank_throws() {
  one_rank_ends<Fixture>({ending::throws_on_host, ending::aborts});
  if constexpr (has_data<Fixture>) // where tasks run
    one_rank_ends<Fixture>({ending::throws_on_stream, ending::throws_on_other_stream});
}

template <class Fixture> void one_rank_returns_early() {
  for (int k = 0; k < operations; ++k)
    check_cause(program<Fixture>(k, ending::returns, a_minute), 2, "has left");
}

template <class Fixture> void one_rank_sleeps() {
  check_cause(program<Fixture>(3, ending::sleeps, milliseconds(500)), 2,
              "rank 2, which takes part in nothing");
}

// Slow is not stuck: a wait may last several deadlines while other ranks complete operations.
template <class Fixture> void progress_restarts_deadlines() {
  const auto outcomes = Fixture::run(
      3,
      [](auto& comm) {
        auto pair = comm.split(comm.rank() == 0 ? -1 : 0, 0);
        for (int i = 0; comm.rank() != 0 && i < 26; ++i) {
          std::this_thread::sleep_for(milliseconds(140));
          pair.close_step();
        }
        comm.close_step();
      },
      milliseconds(2500)); // a machine may stall for a second
  for (const auto& o : outcomes) CHECK_FALSE(o.has_value());
}

// Different numbers of integers.
template <class Fixture> void lengths_differ() {
  const auto outcomes = run_promptly<Fixture>(4, [](auto& comm) {
    const std::vector<std::int64_t> mine(comm.rank() == 2 ? 2 : 3);
    std::vector<std::int64_t> all(4 * mine.size());
    comm.host_exchange(mine, all, "capacities");
  });
  check_cause(outcomes, 2, "rank 1 gives 3, rank 2 gives 2");
}

// Sends and receives of different sizes: both are named, the sender is the failed rank.
template <class Fixture> void sizes_differ() {
  using backend_t = typename Fixture::backend;
  struct scenario {
    pl::index_t sent, expected;
  };
  for (const scenario c : {scenario{8, 9}, scenario{9, 8}, scenario{8, 0}, scenario{0, 8}}) {
    CAPTURE(c.sent);
    CAPTURE(c.expected);
    for (int repeat = 0; repeat < 10; ++repeat) {
      const auto outcomes = run_promptly<Fixture>(4, [=](auto& comm) {
        backend_t backend;
        const int me = comm.rank();
        pl::device_buffer<float, backend_t> a(backend.device(), 16, pl::tag::other);
        pl::device_buffer<float, backend_t> b(backend.device(), 16, pl::tag::other);
        auto s = backend.make_stream("s");
        comm.exchange(s, {send_to((me + 1) % 4, a.first(me == 2 ? c.sent : 5))},
                      {receive_from((me + 3) % 4, b.first(me == 3 ? c.expected : 5))}, "dispatch");
        backend.wait(backend.record(s));
        comm.close_step();
      });
      check_cause(outcomes, 2,
                  "rank 2 to rank 3 has " + std::to_string(4 * c.sent) + " bytes, but rank 3 expects " +
                      std::to_string(4 * c.expected));
    }
  }
  lengths_differ<Fixture>();
}

template <class Fixture> void orders_differ() {
  using backend_t = typename Fixture::backend;
  for (int kind = 0; kind < 2; ++kind) {
    CAPTURE(kind);
    const auto outcomes = run_promptly<Fixture>(3, [=](auto& comm) {
      backend_t backend;
      const int me = comm.rank();
      pl::device_buffer<float, backend_t> a(backend.device(), 16, pl::tag::other);
      pl::device_buffer<float, backend_t> b(backend.device(), 16, pl::tag::other);
      auto s = backend.make_stream("s");
      for (int i = 0; i < 2; ++i) {
        if ((me == 1) != (i == 0))
          comm.exchange(s, {send_to((me + 1) % 3, a.all())}, {receive_from((me + 2) % 3, b.all())},
                        "dispatch");
        else if (kind == 0)
          comm.exchange(s, {send_to((me + 1) % 3, b.all())}, {receive_from((me + 2) % 3, a.all())}, "ring");
        else
          comm.host_exchange({}, {}, "ring");
      }
      backend.wait(backend.record(s));
      comm.close_step();
    });
    for (const auto& o : outcomes) {
      REQUIRE(o.has_value());
      CAPTURE(o->text);
      CHECK(o->what == pl::failure::kind::collective);
      CHECK(o->text.find("'dispatch'") != std::string::npos);
      CHECK(o->text.find("'ring'") != std::string::npos);
    }
  }
}

// The same in two communicators: neither sees the other's order, so the deadline finds the circle.
template <class Fixture> void circle_between_communicators() {
  const auto outcomes = Fixture::run(
      2,
      [](auto& comm) {
        auto first = comm.split(0, 0), second = comm.split(0, 0);
        if (comm.rank() == 0) {
          first.host_exchange({}, {}, "clip");
          second.host_exchange({}, {}, "route");
        } else {
          second.host_exchange({}, {}, "route");
          first.host_exchange({}, {}, "clip");
        }
      },
      milliseconds(500));
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CAPTURE(o->text);
    CHECK(o->text.find("'clip'") != std::string::npos);
    CHECK(o->text.find("'route'") != std::string::npos);
  }
}

// A failure that was latched stops nothing until close_step, where all ranks get it.
template <class Fixture> void latched_failures_surface() {
  const auto outcomes = run_promptly<Fixture>(3, [](auto& comm) {
    if (comm.rank() == 2) comm.latch({pl::failure::kind::other, "label 7 of token 3 is out of range"});
    const std::int64_t mine[] = {comm.rank()};
    std::int64_t all[3];
    comm.host_exchange(mine, all);
    require(all[2] == 2, "the step goes on");
    comm.close_step();
    require(false, "close_step throws");
  });
  check_cause(outcomes, 2, "label 7 of token 3");
}

// What fails on a stream surfaces on all ranks when the step is closed, though no operation follows it, and
// nobody waits: the last stream of the last step too.
template <class Fixture> void stream_failures_surface() {
  using backend_t = typename Fixture::backend;
  for (const int failing : {0, 1, 2}) {
    CAPTURE(failing);
    const auto outcomes = run_promptly<Fixture>(3, [=](auto& comm) {
      backend_t backend;
      auto moves = backend.make_stream("moves"), compute = backend.make_stream("compute");
      pl::close_step(backend, comm, moves, compute);
      if (comm.rank() == failing)
        backend.host_task(compute, [] {
          std::this_thread::sleep_for(milliseconds(20));
          throw std::runtime_error("a full disk");
        });
      pl::close_step(backend, comm, moves, compute);
      require(false, "close_step throws");
    });
    for (const auto& o : outcomes) {
      REQUIRE(o.has_value());
      CAPTURE(o->text);
      CHECK(o->what == pl::failure::kind::collective);
      CHECK(o->failed_rank == failing);
      CHECK(o->operation == "work on a stream");
      CHECK(o->text.find("a full disk") != std::string::npos);
    }
  }
}

// Peers may be copying from a rank's buffers when it fails: it must not free them under their hands. Shows
// under the address and thread sanitizers.
template <class Fixture> void buffers_outlive_copies() {
  using backend_t = typename Fixture::backend;
  std::mt19937 random(1);
  for (int trial = 0; trial < 25; ++trial) {
    const auto delay = std::chrono::microseconds(std::uniform_int_distribution<int>(0, 4000)(random));
    const auto outcomes = run_promptly<Fixture>(4, [=](auto& comm) {
      backend_t backend;
      const int me = comm.rank();
      const pl::index_t n = pl::index_t{1} << 19;
      pl::device_buffer<float, backend_t> a(backend.device(), 4 * n, pl::tag::other);
      pl::device_buffer<float, backend_t> b(backend.device(), 4 * n, pl::tag::other);
      auto s = backend.make_stream("s");
      for (int round = 0; round < 4; ++round) {
        std::vector<pl::send_op> sends;
        std::vector<pl::receive_op> receives;
        for (int p = 0; p < 4; ++p) {
          sends.push_back(send_to(p, a.all().sub(p * n, n)));
          receives.push_back(receive_from(p, b.all().sub(p * n, n)));
        }
        comm.exchange(s, sends, receives);
      }
      if (me == 2) {
        std::this_thread::sleep_for(delay);
        throw std::runtime_error("injected");
      }
      backend.wait(backend.record(s));
      comm.close_step();
    });
    check_cause(outcomes, 2, "injected");
  }
}

// Constructors vote: one that fails fails all with its text, the group stays usable, who differs is named.
template <class Fixture> void votes() {
  const auto outcomes = run_promptly<Fixture>(4, [](auto& comm) {
    const auto text_of = [&](std::uint64_t digest, const pl::failure* mine) -> std::string {
      try {
        pl::vote(comm, digest, mine, "linear cross-entropy");
      } catch (const pl::collective_error& e) {
        require(e.operation == "linear cross-entropy", "the operator is named");
        return std::to_string(e.failed_rank) + ": " + e.cause;
      }
      return "";
    };
    const pl::failure full{pl::failure::kind::budget, "asked for 128 bytes of 64"};
    const bool bad = comm.rank() == 1 || comm.rank() == 3;
    require(text_of(1, bad ? &full : nullptr) == "1: asked for 128 bytes of 64", "the lowest rank's text");
    const std::string differ = text_of(comm.rank() == 2 ? 5 : 4, nullptr);
    require(differ.rfind("2: ", 0) == 0 && differ.find("rank 2 against rank 0, 1, 3") != std::string::npos,
            "who differs");
    require(text_of(4, nullptr).empty(), "a vote that all win");
    const pl::failure endless{pl::failure::kind::budget, std::string(100'000, 'x')};
    require(text_of(1, &endless).size() > 1000, "a long text loses its end");
  });
  for (const auto& o : outcomes) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}

} // namespace contract
