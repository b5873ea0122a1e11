// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/run_seeded.hpp>

#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>

#include <doctest/doctest.h>

#include <string>
#include <thread>

namespace pl = plateau;

TEST_CASE("seeded_group: split gives the ranks of one color one group, and integers go round in it") {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    pl::run_seeded(4, seed, [](pl::seeded_communicator& comm) {
      auto half = comm.split(comm.rank() % 2, 0);
      CHECK(half.size() == 2);
      CHECK(half.world()->schedule() == comm.world()->schedule());
      for (std::int64_t round = 0; round < 5; ++round) {
        const std::int64_t mine[] = {comm.rank() + 10 * round};
        std::int64_t all[2];
        half.host_exchange(mine, all);
        CHECK(all[0] == comm.rank() % 2 + 10 * round);
        CHECK(all[1] == comm.rank() % 2 + 2 + 10 * round);
      }
    });
}

TEST_CASE("seeded_group: a rank may be done with a group before another one gets it") {
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    pl::run_seeded(2, seed, [](pl::seeded_communicator& comm) {
      pl::seeded_backend backend(comm);
      pl::device_buffer<float, pl::seeded_backend> x(backend.device(), 2, pl::tag::other);
      auto stream = backend.make_stream("main");
      const int peer = 1 - comm.rank();
      const auto mine = static_cast<float>(comm.rank());
      backend.launch(stream, pl::elements{2}, pl::fill<float>{mine}, pl::out(x.all()));
      {
        auto both = comm.split(0, 0);
        both.exchange(stream, {pl::send_to(peer, x.first(1))}, {pl::receive_from(peer, x.all().sub(1, 1))});
      }
      backend.wait(backend.record(stream));
      CHECK(x.data()[1] == 1 - mine);
    });
}

TEST_CASE("seeded_group: a rank whose thread never came ends the others") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto group = pl::seeded_communicator::make_group(3, {seed, nullptr});
    std::string text;
    std::thread first([&] {
      auto& comm = group[0];
      comm.world()->schedule()->enter(0);
      try {
        comm.close_step();
      } catch (const pl::collective_error& e) {
        text = e.what();
      }
      comm.leave();
      comm.world()->schedule()->end(0);
    });
    group[1].abort({pl::failure::kind::backend, "no thread for this rank", -1, "run_seeded"});
    for (std::size_t r = 1; r < 3; ++r) group[r].leave();
    first.join();
    CHECK(text == "rank 1 failed in run_seeded (operation 0): no thread for this rank");
  }
}
