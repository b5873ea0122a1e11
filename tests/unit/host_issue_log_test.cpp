// SPDX-License-Identifier: Apache-2.0
#include <plateau/host/issue_log.hpp>

#include <doctest/doctest.h>

#include <string>

using plateau::host::issue_log;
using plateau::host::operation_kind;

TEST_CASE("issue log: who comes later must issue the same operation, by kind and by name") {
  issue_log log;
  CHECK(log.compare(0, operation_kind::exchange, "ring", 1) == nullptr);
  CHECK(log.compare(0, operation_kind::exchange, std::string("ring").c_str(), 0) == nullptr);
  const issue_log::entry* other = log.compare(0, operation_kind::exchange, "dispatch", 2);
  REQUIRE(other != nullptr);
  CHECK(other->rank == 1);
  CHECK(issue_log::describe(other->kind, other->what) == "exchange 'ring'");
  CHECK(log.compare(0, operation_kind::host_exchange, "ring", 2) != nullptr);
  CHECK(log.compare(1, operation_kind::host_exchange, "ring", 2) == nullptr);
}

TEST_CASE("issue log: a rank too far behind is not compared, and does not confuse the others") {
  issue_log log;
  for (std::uint64_t i = 0; i < 3000; ++i)
    REQUIRE(log.compare(i, operation_kind::exchange, "a", 0) == nullptr);
  CHECK(log.compare(5, operation_kind::exchange, "b", 1) == nullptr);
  CHECK(log.compare(2999, operation_kind::exchange, "b", 1) != nullptr);
}
