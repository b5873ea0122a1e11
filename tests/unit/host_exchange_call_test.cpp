// SPDX-License-Identifier: Apache-2.0
//
// Lists of an exchange as they are laid down for its peers.
#include <plateau/host/exchange_call.hpp>

#include <doctest/doctest.h>

#include <cstddef>

namespace pl = plateau;
using namespace plateau::host;

TEST_CASE("exchange call: lists lie behind one another, without what is empty") {
  int a = 0, b = 0;
  alignas(std::max_align_t) unsigned char storage[exchange_list_bytes(3, 2)];
  exchange_call call;
  post_lists(call, storage, {{&a, 4, 1}, {&a, 0, 2}, {&b, 4, 3}}, {{&b, 0, 1}, {&a, 4, 0}});
  REQUIRE(call.sends.size() == 2);
  CHECK(call.sends[0].p == &a);
  CHECK(call.sends[1].peer == 3);
  CHECK_FALSE(call.sends[1].taken);
  REQUIRE(call.receives.size() == 1);
  CHECK(call.receives[0].p == &a);
  CHECK(call.receives[0].peer == 0);
  CHECK(static_cast<void*>(call.sends.data()) == storage);
  CHECK(static_cast<void*>(call.receives.data() + 1) <= storage + sizeof(storage));
}

TEST_CASE("exchange call: nothing to move") {
  exchange_call call;
  post_lists(call, nullptr, {}, {{nullptr, 0, 1}});
  CHECK(call.sends.empty());
  CHECK(call.receives.empty());
  CHECK(exchange_list_bytes(0, 0) == 0);
}
