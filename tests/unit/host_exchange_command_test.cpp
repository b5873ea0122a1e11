// SPDX-License-Identifier: Apache-2.0
//
// An exchange as a command: it runs in the order of its stream, and tells its peers when it cannot.
#include <plateau/host/exchange_command.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace pl = plateau;
using namespace plateau::host;

namespace {
std::shared_ptr<thread_world> world_of(int ranks) {
  std::vector<int> origin;
  for (int r = 0; r < ranks; ++r) origin.push_back(r);
  return std::make_shared<thread_world>(std::make_shared<abort_record>(ranks, std::chrono::minutes(1)),
                                        origin);
}
exchange_call call_of(int rank, std::uint64_t index) {
  exchange_call call;
  call.rank = rank;
  call.index = call.sequence = index;
  call.what = "ring";
  return call;
}
} // namespace

TEST_CASE("exchange command: the lists are read before it is enqueued, their memory at its turn") {
  const auto world = world_of(2);
  int from[2] = {}, to[2] = {};
  stream first("first"), second("second");
  stream* const streams[] = {&first, &second};
  for (int rank = 0; rank < 2; ++rank) {
    streams[rank]->push([&from, rank] { from[rank] = rank + 7; });
    std::vector<pl::send_op> sends{{&from[rank], sizeof(int), 1 - rank}};
    std::vector<pl::receive_op> receives{{&to[rank], sizeof(int), 1 - rank}};
    push_exchange(*streams[rank], world, call_of(rank, 0), sends, receives);
  }
  first.record().wait();
  second.record().wait();
  CHECK(to[0] == 8);
  CHECK(to[1] == 7);
}

TEST_CASE("exchange command: behind a failure it tells its peers, who do not wait for it") {
  const auto world = world_of(2);
  int x = 0, y = 0;
  stream failing("failing"), waiting("waiting");
  failing.push([] { throw std::runtime_error("a kernel"); });
  push_exchange(failing, world, call_of(1, 0), {{&x, sizeof(int), 0}}, {});
  push_exchange(waiting, world, call_of(0, 0), {}, {{&y, sizeof(int), 1}});
  try {
    waiting.record().wait();
    FAIL("nothing was thrown");
  } catch (const pl::collective_error& e) {
    CHECK(e.failed_rank == 1);
    CHECK(e.operation == "ring");
    CHECK(e.cause.find("a kernel") == 0);
  }
}
