// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;

// What is received piece by piece is seen piece by piece: by a host that looks without having waited.
TEST_CASE("seeded_exchange: transfers of one exchange happen one by one, in any order") {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 300; ++seed)
    pl::run_seeded(2, seed, [&](auto& comm) {
      pl::seeded_backend backend{comm};
      pl::pinned_buffer<std::int32_t, pl::seeded_backend> x(backend.pinned(), 3, pl::tag::other),
          y(backend.pinned(), 3, pl::tag::other);
      auto s = backend.make_stream("moves"), other = backend.make_stream("other");
      for (int i = 0; i < 3; ++i) x.data()[i] = 1, y.data()[i] = 0;
      const int peer = 1 - comm.rank();
      std::vector<pl::send_op> sends;
      std::vector<pl::receive_op> receives;
      for (int i = 0; i < 3; ++i) {
        sends.push_back(send_to(peer, x.all().sub(i, 1)));
        receives.push_back(receive_from(peer, y.all().sub(i, 1)));
      }
      comm.exchange(s, sends, receives);
      std::string now;
      backend.host_task(other, [&] {
        for (int i = 0; i < 3; ++i) now += y.data()[i] == 1 ? '1' : '0';
      });
      backend.wait(backend.record(other));
      backend.wait(backend.record(s));
      if (comm.rank() == 0) seen.insert(now);
      for (int i = 0; i < 3; ++i) CHECK(y.data()[i] == 1);
    });
  CHECK(seen.size() == 8); // every set of pieces
}

TEST_CASE("seeded_exchange: who sends more, or to one who expects nothing, is named under every seed") {
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const std::size_t expected : {std::size_t{0}, std::size_t{4}}) {
      const auto outcomes = pl::run_seeded_collecting(2, {seed, nullptr}, [=](auto& comm) {
        pl::seeded_backend backend{comm};
        auto s = backend.make_stream("moves");
        std::array<char, 8> x{}, y{};
        if (comm.rank() == 0)
          comm.exchange(s, {{x.data(), 8, 1}}, {}, "dispatch");
        else
          comm.exchange(s, {}, {{y.data(), expected, 0}}, "dispatch");
        backend.wait(backend.record(s));
        comm.close_step();
      });
      for (const auto& o : outcomes) {
        REQUIRE(o.has_value());
        CHECK(o->text ==
              "send 0 of rank 0 to rank 1 has 8 bytes, but rank 1 expects " + std::to_string(expected));
        CHECK(o->failed_rank == 0);
      }
    }
}
