// SPDX-License-Identifier: Apache-2.0
//
// What is special to ranks as threads; the rest is in tests/contract.
#include <plateau/host/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <plateau/collectives.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

namespace {
std::atomic<std::int64_t> allocations{0};
}
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(n == 0 ? 1 : n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace pl = plateau;

TEST_CASE("thread communicator: from the third call on nothing is allocated") {
  std::int64_t counted = -1;
  pl::run_ranks(4, [&](auto& comm) {
    pl::host_backend backend;
    const int me = comm.rank();
    std::vector<float> a(4096), b(4096);
    std::vector<unsigned char> bytes(pl::reduce_scratch_bytes<float>(4));
    const pl::view<float> x{a.data(), 4096}, y{b.data(), 4096};
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int k = 0; k < 2000; ++k) {
      sends.push_back(send_to(k % 4, x.sub(k, 1)));
      receives.push_back(receive_from(k % 4, y.sub(k, 1)));
    }
    auto s = backend.make_stream("s");
    const auto step = [&] {
      const std::int64_t mine[] = {me, 1};
      std::int64_t all[8];
      comm.exchange(s, {send_to((me + 1) % 4, x)}, {receive_from((me + 3) % 4, y)});
      comm.exchange(s, sends, receives);
      pl::all_reduce(backend, comm, s, inout(x), {bytes.data(), pl::index_t(bytes.size())});
      comm.host_exchange(mine, all);
      backend.wait(backend.record(s));
      comm.close_step();
    };
    for (int i = 0; i < 4; ++i) step();
    if (me == 0) counted = allocations;
    for (int i = 0; i < 20; ++i) step();
    comm.close_step();
    if (me == 0) counted = allocations - counted;
    comm.close_step();
  });
  CHECK(counted == 0);
}

TEST_CASE("thread communicator: lists too long for the ring go to the heap") {
  pl::run_ranks(2, [](auto& comm) {
    pl::host_backend backend;
    const int n = 9000, other = 1 - comm.rank();
    std::vector<int> a(n), b(n);
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int k = 0; k < n; ++k) {
      a[std::size_t(k)] = comm.rank() * n + k;
      sends.push_back({&a[std::size_t(k)], sizeof(int), other});
      receives.push_back({&b[std::size_t(k)], sizeof(int), other});
    }
    auto s = backend.make_stream("s");
    comm.exchange(s, sends, receives);
    backend.wait(backend.record(s));
    for (int k = 0; k < n; ++k)
      if (b[std::size_t(k)] != other * n + k) throw std::logic_error("a wrong element");
  });
}

TEST_CASE("thread communicator: arguments that cannot work are refused at the call") {
  pl::run_ranks(2, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    int x = 0;
    CHECK_THROWS_AS(comm.exchange(s, {pl::send_op{&x, 4, 2}}, {}), pl::config_error);
    try {
      comm.exchange(s, {{&x, 4, 2}}, {}, "dispatch");
    } catch (const pl::config_error& e) {
      const std::string text = e.what();
      CHECK(text.find("rank " + std::to_string(comm.rank()) + ": dispatch at ") != std::string::npos);
      CHECK(text.find("peer 2 does not exist among 2 ranks") != std::string::npos);
    }
    CHECK_THROWS_AS(comm.exchange(s, {}, {pl::receive_op{&x, 4, -1}}), pl::config_error);
    const std::int64_t mine[] = {1};
    std::int64_t all[3];
    CHECK_THROWS_AS(comm.host_exchange(mine, all), pl::config_error);
    comm.close_step(); // nothing has happened to the group
    CHECK(comm.counters().exchanges == 0);
  });
}

TEST_CASE("thread communicator: sent bytes leave out what a rank sends to itself") {
  pl::run_ranks(3, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    const int me = comm.rank();
    std::array<int, 3> x{}, y{};
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int p = 0; p < 3; ++p) {
      sends.push_back({&x[std::size_t(p)], 4, p});
      receives.push_back({&y[std::size_t(p)], 4, p});
    }
    comm.exchange(s, sends, receives);
    backend.wait(backend.record(s));
    CHECK(comm.counters().sent_bytes == 8);
    CHECK(comm.counters().exchanges == 1);
    CHECK(me == comm.origin_rank(me));
  });
}

TEST_CASE("thread communicator: an exception in user code beats what streams say while it passes through") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto outcomes = pl::run_ranks_collecting(3, [](auto& comm) {
      pl::host_backend backend;
      int x = 0, y = 0;
      auto side = comm.split(0, 0);
      auto moves = backend.make_stream("moves"), compute = backend.make_stream("compute");
      comm.exchange(moves, {{&x, 4, (comm.rank() + 1) % 3}}, {{&y, 4, (comm.rank() + 2) % 3}});
      if (comm.rank() == 1) {
        // Blocked for good: rank 2 never comes. The other stream waits for the blocked one, and goes first.
        side.exchange(moves, {}, {{&y, 4, 2}});
        backend.wait(compute, backend.record(moves));
        throw std::runtime_error("the real one");
      }
      comm.close_step();
    });
    for (const int r : {0, 2}) {
      const auto& o = outcomes[std::size_t(r)];
      REQUIRE(o.has_value());
      CHECK(o->failed_rank == 1);
      CHECK(o->text == "the real one");
    }
  }
}
