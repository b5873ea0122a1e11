// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads with the CUDA backend, all on one GPU: the communicator contract, and what CUDA adds
// to it, the order between a rank's stream and the copies that other ranks enqueue. Included by one file that
// runs on a GPU and by one that runs on the stand-in.
#pragma once

#include "contract/communicator_failures.hpp"

#include <plateau/checks.hpp>
#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

namespace cuda_threads {

namespace pl = plateau;
using contract::milliseconds;
using contract::mirrored;
using contract::require;

struct fixture {
  using backend = pl::cuda_backend;
  template <class F> static auto run(int ranks, F f, milliseconds deadline) {
    return pl::run_ranks_collecting<pl::cuda_thread_communicator>(ranks, f, {deadline});
  }
};
static_assert(pl::communicator<pl::cuda_thread_communicator, pl::cuda_backend>);
static_assert(pl::check_communicator<pl::cuda_thread_communicator, pl::cuda_backend>());

using numbers = mirrored<std::int64_t, pl::cuda_backend>;

// The stream does nothing for so long.
inline void hold(pl::cuda_backend& backend, pl::cuda_backend::stream& s, milliseconds time) {
  backend.host_task(s, [time] { std::this_thread::sleep_for(time); });
}

// One stream, another rank late each time: what was sent is overwritten and what was received is read, right
// behind the exchange and with no wait of the host in between.
inline void one_stream() {
  contract::all_succeed<fixture>(3, [](auto& comm, pl::cuda_backend& backend) {
    const int me = comm.rank(), from = (me + 2) % 3, rounds = 12;
    const pl::index_t n = 1 << 14;
    numbers fresh(backend, n), a(backend, n), b(backend, n), kept(backend, rounds * n);
    auto s = backend.make_stream("one");
    fresh.put(s, [](auto) { return -1; });
    for (int round = 0; round < rounds; ++round) {
      a.put(s, [&](auto i) { return i + 1000 * me + round; });
      backend.wait(backend.record(s)); // for the pinned mirror alone
      if (round % 3 == me) hold(backend, s, milliseconds(4));
      comm.exchange(s, {send_to((me + 1) % 3, a.all())}, {receive_from(from, b.all())});
      backend.copy(s, in(fresh.all()), out(a.all()));
      backend.copy(s, in(b.all()), out(kept.sub(round * n, n)));
      backend.copy(s, in(fresh.all()), out(b.all()));
    }
    const auto* got = kept.get(s);
    for (int round = 0; round < rounds; ++round)
      for (pl::index_t i = 0; i < n; ++i)
        require(got[round * n + i] == i + 1000 * from + round,
                "behind an exchange buffers are one's own again");
  });
}

// Two streams: the second exchange sends what the first has received, and nothing orders them but their
// issue.
inline void two_streams() {
  contract::all_succeed<fixture>(3, [](auto& comm, pl::cuda_backend& backend) {
    const int me = comm.rank(), to = (me + 1) % 3, from = (me + 2) % 3;
    const pl::index_t n = 1 << 14;
    numbers a(backend, n), b(backend, n), c(backend, n);
    auto first = backend.make_stream("first"), second = backend.make_stream("second");
    for (int round = 0; round < 12; ++round) {
      a.put(first, [&](auto i) { return i + 1000 * me + round; });
      if (round % 3 == me) hold(backend, first, milliseconds(4));
      if (round % 3 == to) hold(backend, second, milliseconds(2));
      comm.exchange(first, {send_to(to, a.all())}, {receive_from(from, b.all())});
      comm.exchange(second, {send_to(to, b.all())}, {receive_from(from, c.all())});
      const auto* got = c.get(second);
      for (pl::index_t i = 0; i < n; ++i)
        require(got[i] == i + 1000 * to + round,
                "exchanges run in the order of their issue"); // two hops back
      backend.wait(backend.record(first));
    }
  });
}

// A rank whose exchange fails while another one still has to copy what it sent: it gets its buffers back only
// when that is done.
inline void failure_waits_for_readers() {
  std::atomic<bool> enqueued{false}, late{false};
  const auto outcomes = contract::run_promptly<fixture>(3, [&](auto& comm) {
    pl::cuda_backend backend;
    const pl::index_t n = 1 << 16;
    numbers a(backend, n), b(backend, n);
    auto s = backend.make_stream("s");
    if (comm.rank() == 0) {
      try {
        comm.exchange(s, {send_to(1, a.all())}, {receive_from(2, b.all())});
      } catch (const pl::collective_error&) {
        require(late, "no copy from here is outstanding when an exchange has failed");
        throw;
      }
    } else if (comm.rank() == 1) {
      backend.host_task(s, [&] {
        std::this_thread::sleep_for(milliseconds(200));
        late = true;
      });
      comm.exchange(s, {}, {receive_from(0, b.all())});
      enqueued = true;
    } else {
      while (!enqueued) std::this_thread::yield();
      throw std::runtime_error("injected");
    }
    comm.close_step();
  });
  contract::check_cause(outcomes, 2, "injected");
}

// The streams of ranks wait for one another, hosts only until all have issued: a long stream keeps no host.
inline void hosts_do_not_wait_for_devices() {
  std::atomic<int> issued{0};
  contract::all_succeed<fixture>(2, [&](auto& comm, pl::cuda_backend& backend) {
    numbers a(backend, 8), b(backend, 8);
    auto s = backend.make_stream("long");
    a.put(s, [](auto i) { return i; });
    backend.wait(backend.record(s));
    comm.close_step(); // CUDA may let who takes memory wait until the device is idle: all have theirs now
    std::atomic<bool> released{false};
    if (comm.rank() == 0)
      backend.host_task(s, [&] {
        for (int i = 0; i < 20'000 && issued != 2; ++i) std::this_thread::sleep_for(milliseconds(1));
        released = issued == 2;
      });
    comm.exchange(s, {send_to(1 - comm.rank(), a.all())}, {receive_from(1 - comm.rank(), b.all())});
    ++issued;
    const auto* got = b.get(s);
    require(got[7] == 7, "it arrives");
    require(comm.rank() != 0 || released, "both hosts had issued the exchange before the stream came to it");
  });
}

} // namespace cuda_threads

TEST_CASE("cuda threads: exchange ring") { contract::exchange_ring<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: exchange all to all") { contract::exchange_all_to_all<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: exchange pieces") { contract::exchange_pieces<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: exchange long lists") { contract::exchange_long_lists<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: exchange nothing") { contract::exchange_nothing<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: exchanges match in order of issue") {
  contract::order_of_issue<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: host exchange") { contract::host_exchanges<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: split") { contract::splits<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: sums in rank order, float") { contract::sums_of<float, cuda_threads::fixture>(); }
TEST_CASE("cuda threads: sums in rank order, int64") {
  contract::sums_of<std::int64_t, cuda_threads::fixture>();
}

TEST_CASE("cuda threads: behind an exchange on one stream") { cuda_threads::one_stream(); }
TEST_CASE("cuda threads: exchanges on two streams") { cuda_threads::two_streams(); }
TEST_CASE("cuda threads: an exchange waits for hosts alone") {
  cuda_threads::hosts_do_not_wait_for_devices();
}

TEST_CASE("cuda threads: P3: a rank throws between two operations, on the host or on a stream") {
  contract::one_rank_throws<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: a rank returns early") { contract::one_rank_returns_early<cuda_threads::fixture>(); }
TEST_CASE("cuda threads: a rank sleeps past the deadline") {
  contract::one_rank_sleeps<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: progress restarts deadlines") {
  contract::progress_restarts_deadlines<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: sizes differ") { contract::sizes_differ<cuda_threads::fixture>(); }
TEST_CASE("P2: cuda threads: ranks start collectives in different orders: both operations are named") {
  contract::orders_differ<cuda_threads::fixture>();
  contract::circle_between_communicators<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: latched failures surface at close_step") {
  contract::latched_failures_surface<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: what fails on a stream surfaces at close_step, though nobody waits for it") {
  contract::stream_failures_surface<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: buffers outlive the copies of peers") {
  contract::buffers_outlive_copies<cuda_threads::fixture>();
}
TEST_CASE("cuda threads: an exchange that fails waits for those who still copy") {
  cuda_threads::failure_waits_for_readers();
}
TEST_CASE("cuda threads: votes") { contract::votes<cuda_threads::fixture>(); }
