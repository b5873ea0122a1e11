// SPDX-License-Identifier: Apache-2.0
//
// What every communicator must do while nothing fails. A fixture gives
//   backend                                       the backend whose streams carry the exchanges
//   run(ranks, f, deadline) -> outcomes           f(comm) on each rank; what each rank known here left with
// and each function below is one test of it. A fixture whose backend has no data says so by a member
//   static constexpr bool without_data = true
// and leaves out the functions that look at what was moved.
#pragma once

#include "rank_tools.hpp"

#include <doctest/doctest.h>

#include <plateau/collectives.hpp>
#include <plateau/exchange.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace contract {

using std::chrono::milliseconds;

template <class Fixture> inline constexpr bool has_data = !requires { Fixture::without_data; };

// Runs f(comm, backend, stream) on each rank; nothing may fail.
template <class Fixture, class F> void all_succeed(int ranks, F f) {
  const auto outcomes = Fixture::run(
      ranks,
      [&](auto& comm) {
        typename Fixture::backend backend;
        f(comm, backend);
      },
      milliseconds(60'000));
  for (const auto& o : outcomes) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}

// A ring comes back after as many hops as ranks.
template <class Fixture> void exchange_ring() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 3, 4})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t& backend) {
      const int me = comm.rank(), n = comm.size();
      mirrored<std::int64_t, backend_t> a(backend, 1000), b(backend, 1000);
      auto s = backend.make_stream("ring");
      a.put(s, [&](auto i) { return me * 1000 + i; });
      for (int hop = 0; hop < 2 * n; ++hop) {
        comm.exchange(s, {send_to((me + 1) % n, a.all())}, {receive_from((me + n - 1) % n, b.all())});
        backend.copy(s, in(b.all()), out(a.all()));
      }
      const auto* got = a.get(s);
      for (int i = 0; i < 1000; ++i) require(got[i] == me * 1000 + i, "a ring comes back");
    });
}

// All to all: uneven, with empty pairs and sends to oneself.
template <class Fixture> void exchange_all_to_all() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 3, 4})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t& backend) {
      const int me = comm.rank(), n = comm.size();
      const auto count = [n](int from, int to) { return pl::index_t{(from * 7 + to * 5) % (n + 1)} * 11; };
      pl::index_t out_rows = 0, in_rows = 0;
      for (int p = 0; p < n; ++p) {
        out_rows += count(me, p);
        in_rows += count(p, me);
      }
      mirrored<std::int64_t, backend_t> a(backend, out_rows), b(backend, in_rows);
      auto s = backend.make_stream("all to all");
      a.put(s, [&](auto i) { return me * 10'000 + i; });
      std::vector<pl::send_op> sends;
      std::vector<pl::receive_op> receives;
      pl::index_t from = 0, to = 0;
      for (int p = 0; p < n; ++p) {
        sends.push_back(send_to(p, a.sub(from, count(me, p))));
        receives.push_back(receive_from(p, b.sub(to, count(p, me))));
        from += count(me, p);
        to += count(p, me);
      }
      comm.exchange(s, sends, receives, "all to all");
      const auto* got = b.get(s);
      for (int p = 0; p < n; ++p) {
        pl::index_t skipped = 0;
        for (int q = 0; q < me; ++q) skipped += count(p, q);
        for (pl::index_t i = 0; i < count(p, me); ++i)
          require(*got++ == p * 10'000 + skipped + i, "rows in the order of sources");
      }
    });
}

// Several sends a pair meet their receives in order, whatever the order of peers.
template <class Fixture> void exchange_pieces() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 3, 4})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t& backend) {
      const int me = comm.rank(), n = comm.size();
      mirrored<std::int64_t, backend_t> a(backend, 3 * n), b(backend, 3 * n);
      auto s = backend.make_stream("pieces");
      a.put(s, [&](auto i) { return me * 100 + i; });
      std::vector<pl::send_op> sends;
      std::vector<pl::receive_op> receives;
      for (int k = 0; k < 3; ++k)
        for (int p = 0; p < n; ++p) sends.push_back(send_to(p, a.sub(3 * p + k, 1)));
      for (int p = n - 1; p >= 0; --p)
        for (int k = 0; k < 3; ++k) receives.push_back(receive_from(p, b.sub(3 * p + k, 1)));
      comm.exchange(s, sends, receives);
      const auto* got = b.get(s);
      for (int p = 0; p < n; ++p)
        for (int k = 0; k < 3; ++k) require(got[3 * p + k] == p * 100 + 3 * me + k, "piece by piece");
    });
}

// Lists of hundreds of rows, megabytes together.
template <class Fixture> void exchange_long_lists() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 3, 4})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t& backend) {
      const int me = comm.rank(), n = comm.size(), pieces = 700;
      const pl::index_t row = 1031;
      mirrored<std::int64_t, backend_t> a(backend, pieces * row), b(backend, pieces * row);
      auto s = backend.make_stream("long");
      a.put(s, [&](auto i) { return me + i; });
      std::vector<pl::send_op> sends;
      std::vector<pl::receive_op> receives;
      for (int k = 0; k < pieces; ++k) {
        sends.push_back(send_to((me + 1) % n, a.sub(k * row, row)));
        receives.push_back(receive_from((me + n - 1) % n, b.sub(k * row, row)));
      }
      comm.exchange(s, sends, receives);
      const auto* got = b.get(s);
      for (pl::index_t i = 0; i < pieces * row; ++i)
        require(got[i] == (me + n - 1) % n + i, "a row of a long list");
    });
}

// A rank with nothing to move takes part with empty lists, and zero bytes are skipped on one side alone.
template <class Fixture> void exchange_nothing() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 3, 4})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t& backend) {
      const pl::index_t rows = comm.rank() == 0 ? 5 : 0;
      mirrored<std::int64_t, backend_t> a(backend, rows), b(backend, rows);
      auto s = backend.make_stream("empty");
      a.put(s, [](auto i) { return i; });
      if (comm.rank() == comm.size() - 1 && comm.rank() != 0)
        comm.exchange(s, {}, {});
      else
        comm.exchange(s, {send_to(0, a.all()), send_to(comm.size() - 1, a.sub(0, 0))},
                      {receive_from(0, b.all())});
      const auto* got = b.get(s);
      for (pl::index_t i = 0; i < rows; ++i) require(got[i] == i, "a send to oneself");
    });
}

// Exchanges match in the order in which host threads issue them, though two streams run them at any time.
template <class Fixture> void order_of_issue() {
  using backend_t = typename Fixture::backend;
  all_succeed<Fixture>(4, [](auto& comm, backend_t& backend) {
    const int me = comm.rank();
    mirrored<std::int64_t, backend_t> a(backend, 2), b(backend, 2);
    auto first = backend.make_stream("first"), second = backend.make_stream("second");
    for (int trial = 0; trial < 100; ++trial) {
      a.put(first, [&](auto i) { return 2 * trial + i; });
      backend.wait(second, backend.record(first));
      auto& slow = (me + trial) % 2 == 0 ? first : second;
      backend.host_task(slow, [] { std::this_thread::sleep_for(std::chrono::microseconds(300)); });
      for (const int k : {0, 1})
        comm.exchange(k == 0 ? first : second, {send_to((me + 1) % 4, a.sub(k, 1))},
                      {receive_from((me + 3) % 4, b.sub(k, 1))});
      backend.wait(first, backend.record(second));
      const auto* got = b.get(first);
      require(got[0] == 2 * trial && got[1] == 2 * trial + 1, "exchanges of two streams do not cross");
    }
  });
}

template <class Fixture> void host_exchanges() {
  using backend_t = typename Fixture::backend;
  for (const int ranks : {1, 2, 5})
    all_succeed<Fixture>(ranks, [](auto& comm, backend_t&) {
      const auto n = static_cast<std::size_t>(comm.size());
      for (std::int64_t round = 0; round < 50; ++round) {
        const std::size_t length = static_cast<std::size_t>(round % 4);
        std::vector<std::int64_t> mine(length), all(n * length);
        for (std::size_t i = 0; i < length; ++i)
          mine[i] = (std::int64_t{comm.rank()} << 40) + round * 10 + std::int64_t(i);
        comm.host_exchange(mine, all);
        for (std::size_t r = 0; r < n; ++r)
          for (std::size_t i = 0; i < length; ++i)
            require(all[r * length + i] == (std::int64_t(r) << 40) + round * 10 + std::int64_t(i),
                    "integers in rank order");
      }
      const auto before = comm.counters();
      comm.close_step();
      require((comm.counters() - before).host_exchanges == 1, "close_step is one host exchange");
    });
}

// Colors separate, keys order, equal keys keep the order of ranks; splits nest; a negative color is nobody.
template <class Fixture> void groups() {
  all_succeed<Fixture>(6, [](auto& comm, typename Fixture::backend&) {
    const int me = comm.rank();
    auto reversed = comm.split(0, -me);
    require(reversed.size() == 6 && reversed.rank() == 5 - me, "keys order ranks");
    auto same = comm.split(7, 3);
    require(same.rank() == me, "equal keys keep the order");
    auto parity = reversed.split(me % 2, me); // 0 2 4 and 1 3 5
    require(parity.size() == 3 && parity.rank() == me / 2, "colors separate");
    auto pair = parity.split(parity.rank() < 2 ? 0 : -1, 0);
    require(pair.size() == (parity.rank() < 2 ? 2 : 0), "a negative color is nobody");

    const std::int64_t mine[] = {me};
    std::vector<std::int64_t> all(3);
    parity.host_exchange(mine, all);
    for (int r = 0; r < 3; ++r) require(all[static_cast<std::size_t>(r)] == 2 * r + me % 2, "who is in it");
    if (pair.size() == 0) {
      const auto refuses = [](auto call) {
        try {
          call();
        } catch (const pl::config_error&) {
          return true;
        }
        return false;
      };
      require(refuses([&] { pair.close_step(); }), "nothing can be done with a communicator of size 0");
      if constexpr (requires { pair.cause(); })
        require(refuses([&] { static_cast<void>(pair.cause()); }), "nor has it a cause of failure");
    }
  });
}
// Exchanges go between the ranks of the group.
template <class Fixture> void exchanges_of_groups() {
  using backend_t = typename Fixture::backend;
  all_succeed<Fixture>(6, [](auto& comm, backend_t& backend) {
    const int me = comm.rank();
    auto parity = comm.split(0, -me).split(me % 2, me);
    mirrored<std::int64_t, backend_t> a(backend, 1), b(backend, 1);
    auto s = backend.make_stream("groups");
    a.put(s, [&](auto) { return me; });
    parity.exchange(s, {send_to((parity.rank() + 1) % 3, a.all())},
                    {receive_from((parity.rank() + 2) % 3, b.all())});
    require(*b.get(s) == (me + 4) % 6, "peers are ranks of the group");
  });
}
template <class Fixture> void splits() {
  groups<Fixture>();
  exchanges_of_groups<Fixture>();
}

// Sums of integers are exact; sums of floats have the bits of ((x0 + x1) + x2) + ... on every rank.
template <class T, class Fixture> void sums_of() {
  using backend_t = typename Fixture::backend;
  const auto value = [](int r, pl::index_t i) {
    return static_cast<T>(static_cast<double>((i * 7919 + r * 104'729) % 1009 - 500) / 3.0);
  };
  for (const int ranks : {1, 2, 3, 4, 5})
    for (const pl::index_t n : {0, 1, 3, 64, 1000})
      for (const pl::index_t piece : {1, 17, 256, 100'000}) {
        CAPTURE(ranks);
        CAPTURE(n);
        CAPTURE(piece);
        if (piece == 1 && n > 64) continue;
        all_succeed<Fixture>(ranks, [=](auto& comm, backend_t& backend) {
          const int me = comm.rank();
          const pl::collective_options options{piece};
          const auto sum = [&](pl::index_t i) {
            T total = value(0, i);
            for (int r = 1; r < ranks; ++r) total = total + value(r, i);
            return total;
          };
          std::vector<pl::index_t> counts(static_cast<std::size_t>(ranks), 0);
          for (pl::index_t i = 0; i < n; ++i) ++counts[static_cast<std::size_t>(i * i % ranks)];
          pl::index_t first = 0;
          for (int r = 0; r < me; ++r) first += counts[static_cast<std::size_t>(r)];
          const pl::index_t part = counts[static_cast<std::size_t>(me)];

          mirrored<T, backend_t> a(backend, n), b(backend, part), c(backend, n);
          pl::device_buffer<unsigned char, backend_t> scratch(
              backend.device(), pl::index_t(pl::reduce_scratch_bytes<T>(ranks, options)), pl::tag::other);
          auto s = backend.make_stream("sums");
          a.put(s, [&](auto i) { return value(me, i); });
          pl::reduce_scatter(backend, comm, s, in(a.all()), out(b.all()), counts, scratch.all(), options);
          pl::all_gather(backend, comm, s, in(b.all()), out(c.all()), counts);
          pl::all_reduce(backend, comm, s, inout(a.all()), scratch.all(), options);
          const T* gathered = c.get(s);
          const T* reduced = a.get(s);
          for (pl::index_t i = 0; i < n; ++i) {
            require(gathered[i] == sum(i), "reduce_scatter and all_gather");
            require(reduced[i] == sum(i), "all_reduce");
          }
          // In place: the result is the rank's own part of the data.
          c.put(s, [&](auto i) { return value(me, i); });
          pl::reduce_scatter(backend, comm, s, in(c.all()), out(c.sub(first, part)), counts, scratch.all(),
                             options);
          pl::all_gather(backend, comm, s, in(c.sub(first, part)), out(c.all()), counts);
          const T* in_place = c.get(s);
          for (pl::index_t i = 0; i < n; ++i) require(in_place[i] == sum(i), "in place");
        });
      }
}

} // namespace contract
