// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of one communicator share, called as streams and communicators call it; how whole programs
// fare is in tests/contract.
#include <plateau/host/thread_world.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace pl = plateau;
using namespace plateau::host;

namespace {
std::shared_ptr<thread_world> world_of(std::vector<int> origin, std::chrono::milliseconds deadline) {
  return std::make_shared<thread_world>(std::make_shared<abort_record>(10, deadline), std::move(origin));
}
// Rank `rank` takes part in exchange 0 with these lists; the text of its failure.
template <class World>
std::string exchange(World& world, int rank, std::vector<posted_send> sends,
                     std::vector<posted_receive> receives) {
  exchange_call call;
  call.rank = rank;
  call.what = "ring";
  call.sends = sends;
  call.receives = receives;
  try {
    world.exchange(call);
  } catch (const pl::collective_error& e) {
    return std::to_string(e.failed_rank) + ": " + e.cause;
  }
  return "";
}
const char* const letters = "abcdefgh";
} // namespace

TEST_CASE("thread world: several pieces between two ranks meet in their order") {
  const auto world = world_of({0, 1}, std::chrono::minutes(1));
  char to[4] = {};
  std::string sender;
  std::thread other([&] { sender = exchange(*world, 1, {{letters, 1, 0}, {letters + 3, 2, 0}}, {}); });
  CHECK(exchange(*world, 0, {}, {{to, nullptr, 1, 1}, {to + 1, nullptr, 2, 1}}) == "");
  other.join();
  CHECK(sender == "");
  CHECK(std::strcmp(to, "ade") == 0);
}

TEST_CASE(
    "thread world: a size that nobody expects fails both, with the sender's number in the whole group") {
  const auto world = world_of({3, 8}, std::chrono::minutes(1));
  char to[4] = {};
  std::string sender;
  std::thread other([&] { sender = exchange(*world, 1, {{letters, 2, 0}}, {}); });
  const std::string receiver = exchange(*world, 0, {}, {{to, nullptr, 3, 1}});
  other.join();
  CHECK(receiver == "8: send 0 of rank 8 to rank 3 has 2 bytes, but rank 3 expects 3");
  CHECK(sender == receiver);
  CHECK(to[0] == '\0');
}

TEST_CASE("thread world: who does not come is named when the deadline has passed") {
  const auto world = world_of({0, 1}, std::chrono::milliseconds(50));
  char to = 0;
  const std::string told = exchange(*world, 0, {}, {{&to, nullptr, 1, 1}});
  CHECK(told.find("1: no rank completed an operation for 50 ms") == 0);
}

TEST_CASE(
    "thread world: a failure given up by one stream reaches the others, and no work is issued after it") {
  const auto world = world_of({0, 1}, std::chrono::minutes(1));
  world->give_up(1, "ring", 0, {pl::failure::kind::backend, "no disk"});
  char to = 0;
  CHECK(exchange(*world, 0, {}, {{&to, nullptr, 1, 1}}) == "1: no disk");
  CHECK_THROWS_AS(world->issue(0, 1, operation_kind::exchange, "next"), pl::collective_error);
}

namespace {
struct broken_mover {
  using stream = plateau::host::stream;
  using call = exchange_call;
  static constexpr bool on_host_thread = false;

  explicit broken_mover(int) {}
  void receive(call&, call&, int, std::size_t) { throw pl::backend_error("a broken link"); }
};
} // namespace

TEST_CASE("thread world: where a mover throws, its rank leaves the exchange and its peer can too") {
  basic_thread_world<broken_mover> world(std::make_shared<abort_record>(2, std::chrono::minutes(1)), {0, 1});
  char to[1] = {};
  std::string sender;
  std::thread other([&] { sender = exchange(world, 1, {{letters, 1, 0}}, {}); });
  CHECK_THROWS_WITH_AS(exchange(world, 0, {}, {{to, nullptr, 1, 1}}), "a broken link", pl::backend_error);
  world.abort(0, {pl::failure::kind::collective, "a broken link", 0, "ring", 0});
  other.join();
  CHECK(sender == "0: a broken link");
}

TEST_CASE("thread world: the children of one split are one world for each color") {
  const auto world = world_of({5, 6, 7}, std::chrono::minutes(1));
  const auto child = [&](std::uint64_t sequence, int color, std::vector<int> members) {
    pl::host::split_group agreed;
    agreed.sequence = sequence;
    agreed.color = color;
    agreed.members = std::move(members);
    return world->child(0, agreed);
  };
  const auto even = child(4, 0, {0, 2}), same = child(4, 0, {0, 2});
  const auto odd = child(4, 1, {1}), later = child(5, 0, {0, 2});
  CHECK(even == same);
  CHECK(even != odd);
  CHECK(even != later);
  CHECK(child(5, -1, {}) == nullptr);
  CHECK(even->size() == 2);
  CHECK(even->origin(1) == 7);
  CHECK(odd->record() == world->record());
}
