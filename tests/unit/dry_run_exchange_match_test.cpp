// SPDX-License-Identifier: Apache-2.0
//
// Who meets whom, for how long; and exchanges that do not fit, each named with both lines.
#include <plateau/dry_run/exchange_match.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using plateau_test::addresses;
using plateau_test::program_writer;
using plateau_test::slow_machine;

dry::exchange_match match(const std::vector<program_writer>& writers, const dry::fold& f = {},
                          const pl::hardware& h = slow_machine()) {
  const dry::cost_model model(h);
  const auto programs = addresses(writers);
  const dry::group_table table(programs, f);
  return dry::match_exchanges(table, model);
}
std::vector<program_writer> ranks(int n) {
  std::vector<program_writer> list;
  for (int r = 0; r < n; ++r) {
    list.emplace_back(r, n);
    list.back().stream("main");
  }
  return list;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("a flow lasts as long as its sender's or its receiver's bytes on links of its kind") {
  auto r = ranks(4); // two nodes of two; 10 bytes a second in the node, 1 across
  r[0].exchange(1, {{1, 20}, {2, 3}, {3, 1}}, {});
  r[1].exchange(1, {}, {{0, 20}});
  r[2].exchange(1, {}, {{0, 3}});
  r[3].exchange(1, {{3, 200}}, {{0, 1}, {3, 200}});
  const auto m = match(r);
  CHECK(m.trouble == "");
  CHECK(m.exchanges[0][0].load.seconds == 4); // 3 + 1 bytes across
  CHECK(m.exchanges[1][0].load.seconds == 2);
  CHECK(m.exchanges[2][0].load.seconds == 4); // its 3 bytes share the sender's link with another
  CHECK(m.exchanges[3][0].load.seconds == 4); // a copy of 200 bytes on the device takes as long
  CHECK(m.exchanges[3][0].load.self == 200);
  CHECK(m.exchanges[0][0].load.node_out == 20);
  CHECK(m.exchanges[0][0].load.network_out == 4);
  const auto peers = m.peers_of(0, m.exchanges[0][0]);
  CHECK(std::vector<std::uint32_t>(peers.begin(), peers.end()) == std::vector<std::uint32_t>{1, 2, 3});
  CHECK(m.peers_of(3, m.exchanges[3][0]).size() == 1);
}

TEST_CASE("in a node as well, the fuller end of a flow sets its time") {
  pl::hardware h = slow_machine();
  h.ranks_per_node = 4;
  auto r = ranks(4);
  r[0].exchange(1, {{1, 20}, {2, 30}}, {});
  r[1].exchange(1, {}, {{0, 20}});
  r[2].exchange(1, {}, {{0, 30}, {3, 40}});
  r[3].exchange(1, {{2, 40}}, {});
  const auto m = match(r, {}, h);
  CHECK(m.trouble == "");
  CHECK(m.exchanges[0][0].load.seconds == 7); // rank 2 receives 70 bytes
  CHECK(m.exchanges[1][0].load.seconds == 5); // rank 0 sends 50
  CHECK(m.exchanges[2][0].load.seconds == 7);
  CHECK(m.exchanges[3][0].load.seconds == 7);
}

TEST_CASE("groups are told apart by path, and number their ranks themselves") {
  auto r = ranks(4);
  // Ranks 3 and 1, in this order, and 0 and 2: one path, two communicators.
  const auto odd = r[1].group("/0", {3, 1});
  r[3].group("/0", {3, 1});
  r[0].group("/0", {0, 2});
  r[2].group("/0", {0, 2});
  r[1].exchange(1, {{0, 5}}, {}, "odd", 1, odd);
  r[3].exchange(1, {}, {{1, 5}}, "odd", 1, odd);
  r[0].exchange(1, {{1, 7}}, {}, "even", 1, odd);
  r[2].exchange(1, {}, {{0, 7}}, "even", 1, odd);
  r[2].exchange(1, {{3, 2}}, {});
  r[3].exchange(1, {}, {{2, 2}});
  const auto m = match(r);
  CHECK(m.trouble == "");
  CHECK(m.exchanges[1][0].load.seconds == 5); // across
  CHECK(m.exchanges[2][0].load.seconds == 7);
  CHECK(m.exchanges[2][1].load.node_out == 2);
}

TEST_CASE("the k-th send meets the k-th receive, wherever in the lists they are") {
  auto r = ranks(3);
  r[0].exchange(1, {{2, 4}, {1, 5}, {2, 6}}, {});
  r[1].exchange(1, {}, {{0, 5}});
  r[2].exchange(1, {}, {{0, 4}, {0, 6}});
  CHECK(match(r).trouble == "");
}

TEST_CASE("sizes that differ are named with both lines") {
  auto r = ranks(2);
  r[0].exchange(1, {{1, 8}}, {});
  r[1].exchange(1, {}, {{0, 8}});
  r[0].exchange(1, {{1, 4}, {1, 5}, {1, 6}}, {}, "rows", 11);
  r[1].exchange(1, {}, {{0, 4}, {0, 9}, {0, 6}}, "rows", 22);
  const std::string text = match(r).trouble;
  CAPTURE(text);
  CHECK(has(text, "exchange 1 of the outermost communicator"));
  CHECK(has(text, "send 1 of rank 0 to rank 1 has 5 bytes"));
  CHECK(has(text, "expects 9"));
  CHECK(has(text, "rank 0: 'rows' at model.cpp:11"));
  CHECK(has(text, "rank 1: 'rows' at model.cpp:22"));
}

TEST_CASE("the same bytes in another order do not fit") {
  auto r = ranks(2);
  r[0].exchange(1, {{1, 4}, {1, 5}}, {});
  r[1].exchange(1, {}, {{0, 5}, {0, 4}});
  CHECK(has(match(r).trouble, "send 0 of rank 0 to rank 1 has 4 bytes"));
}

TEST_CASE("a send that nobody receives, and the other way round") {
  auto r = ranks(2);
  r[0].exchange(1, {{1, 4}, {1, 5}}, {}, "rows", 11);
  r[1].exchange(1, {}, {{0, 4}}, "rows", 22);
  std::string text = match(r).trouble;
  CAPTURE(text);
  CHECK(has(text, "send 1 of rank 0 to rank 1 (5 bytes) is received by nobody"));
  CHECK(has(text, "model.cpp:11"));
  CHECK(has(text, "model.cpp:22"));

  auto q = ranks(2);
  q[0].exchange(1, {}, {}, "rows", 11);
  q[1].exchange(1, {}, {{0, 7}}, "rows", 22);
  text = match(q).trouble;
  CAPTURE(text);
  CHECK(has(text, "receive 0 of rank 1 from rank 0 (7 bytes) is sent by nobody"));
  CHECK(has(text, "model.cpp:11"));
  CHECK(has(text, "model.cpp:22"));
}

TEST_CASE("a rank that has issued fewer exchanges is named with its last one") {
  auto r = ranks(2);
  r[0].exchange(1, {{1, 4}}, {}, "rows", 11);
  r[1].exchange(1, {}, {{0, 4}}, "rows", 22);
  r[0].exchange(1, {{1, 6}}, {}, "more rows", 12);
  const std::string text = match(r).trouble;
  CAPTURE(text);
  CHECK(has(text, "send 0 of rank 0 to rank 1 (6 bytes) is received by nobody"));
  CHECK(has(text, "'more rows' at model.cpp:12"));
  CHECK(has(text, "rank 1: has issued 1 exchanges there, the last 'rows' at model.cpp:22"));
  // Where no bytes are shared, nothing is missing.
  auto q = ranks(2);
  q[0].exchange(1, {}, {});
  CHECK(match(q).trouble == "");
}

TEST_CASE("self-sends must fit too") {
  auto r = ranks(1);
  r[0].exchange(1, {{0, 4}}, {{0, 5}});
  CHECK(has(match(r).trouble, "send 0 of rank 0 to rank 0 has 4 bytes"));
}

TEST_CASE("folded ranks: one program for a class, sums of bytes between classes") {
  // Four ranks of two nodes in a ring, all alike: rank 0 stands for them.
  std::vector<program_writer> one;
  one.emplace_back(0, 4);
  one[0].stream("main");
  one[0].exchange(1, {{1, 6}}, {{3, 6}});
  const auto m = match(one, {{0, 0, 0, 0}});
  CHECK(m.trouble == "");
  CHECK(m.exchanges[0][0].peers == 0);        // those like it come when it does
  CHECK(m.exchanges[0][0].load.seconds == 6); // from rank 3 across; to rank 1 it would be 0.6

  // One rank sends to three that are alike.
  std::vector<program_writer> two;
  two.emplace_back(0, 4);
  two.emplace_back(1, 4);
  for (auto& w : two) w.stream("main");
  two[0].exchange(1, {{1, 10}, {2, 10}, {3, 10}}, {}, "rows", 11);
  two[1].exchange(1, {}, {{0, 10}}, "rows", 22);
  const dry::fold f{{0, 1, 1, 1}};
  CHECK(match(two, f).trouble == "");
  CHECK(match(two, f).exchanges[0][0].peers == 1);
  two[1].program().exchanges[0].receives[0].bytes = 11;
  const std::string text = match(two, f).trouble;
  CAPTURE(text);
  CHECK(has(text, "not alike"));
  CHECK(has(text, "model.cpp:11"));
  CHECK(has(text, "model.cpp:22"));
  CHECK(has(text, "30 bytes"));
  CHECK(has(text, "33"));
}

TEST_CASE("host exchanges are called by all members, equally often") {
  auto r = ranks(2);
  for (auto& w : r) w.host_exchange("counts");
  {
    const auto programs = addresses(r);
    CHECK(dry::match_host_exchanges(dry::group_table(programs, {})) == "");
  }
  r[1].host_exchange("votes");
  const auto programs = addresses(r);
  const std::string text = dry::match_host_exchanges(dry::group_table(programs, {}));
  CAPTURE(text);
  CHECK(has(text, "host exchange 1 of the outermost communicator"));
  CHECK(has(text, "rank 1 calls 'votes'"));
  CHECK(has(text, "rank 0 has called only 1, the last 'counts'"));
}

TEST_CASE("folds and groups that do not fit the programs are refused") {
  auto r = ranks(2);
  const auto programs = addresses(r);
  CHECK_THROWS_AS(dry::group_table(programs, {{0, 2}}), pl::config_error);
  CHECK_THROWS_AS(dry::group_table(programs, {{0, -1}}), pl::config_error);
  CHECK_THROWS_AS(dry::group_table(programs, {{1, 0}}), pl::config_error);
  CHECK_THROWS_AS(dry::group_table(programs, {{0}}), pl::config_error);
  r[0].group("/0", {0, 5});
  CHECK_THROWS_AS(dry::group_table(programs, {}), pl::config_error);
}

} // namespace
