// SPDX-License-Identifier: Apache-2.0
//
// The recorder of a rank: what it is asked becomes the program, passes the order check, and fails or is
// forgotten where its options say so.
#include <plateau/dry_run/recorder.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using dry::access_range;
using dry::action;
using dry::engine;
using dry::touch;
using pl::dry_options;
using pl::tag;

constexpr std::uintptr_t memory = 0x1000;
access_range bytes(std::size_t first, std::size_t n, touch mode) {
  return {memory + first, n, 1, 0, 1, 0, mode};
}
void issue(dry::recorder& r, std::uint16_t s, int line, const char* name, std::vector<access_range> touched) {
  r.issue(s, {"program.cpp", line}, name, {}, touched);
}
bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
std::string only_finding(const dry::recorder& r) {
  REQUIRE(r.findings().size() == 1);
  CHECK(r.found() == 1);
  return r.text_of(r.findings()[0]);
}
std::vector<action> actions(const dry::recorder& r) {
  std::vector<action> list;
  for (const dry::instruction& i : r.program().instructions) list.push_back(i.what);
  return list;
}
const dry::instruction& last(const dry::recorder& r) { return r.program().instructions.back(); }
const dry::label& label_of(const dry::recorder& r, const dry::instruction& i) {
  return r.program().labels[i.name];
}

// Two streams hand a buffer back and forth, then the host reads it. Every wait matters. Returns false where
// something threw.
constexpr int operations = 5, waits = 4;
void two_streams(dry::recorder& r) {
  const auto a = r.open_stream("a"), b = r.open_stream("b");
  r.allocated(memory, 64, "device", tag::activations);
  issue(r, a, 10, "produce", {bytes(0, 64, touch::write)});
  r.wait(b, r.record(a), {"program.cpp", 11});
  issue(r, b, 12, "double", {bytes(0, 64, touch::update)});
  r.wait(a, r.record(b), {"program.cpp", 13});
  issue(r, a, 14, "triple", {bytes(0, 32, touch::update)});
  r.wait(0, r.record(a), {"program.cpp", 15}, true);
  issue(r, 0, 16, "look", {bytes(0, 64, touch::read)});
  issue(r, b, 17, "last", {bytes(32, 32, touch::update)});
  r.wait(0, r.record(b), {"program.cpp", 18});
  r.freed(memory);
  r.close_stream(b);
  r.close_stream(a);
}

} // namespace

TEST_CASE("options: what is on when nothing is said") {
  const dry_options none;
  CHECK(none.check_order);
  CHECK(none.record_program);
  CHECK(none.drop_wait == dry_options::never);
  CHECK(none.throw_at == dry_options::never);
  CHECK(none.only_rank == -1);
  CHECK_FALSE(none.scenario);
  dry::recorder r("rank 3", 3);
  CHECK(r.rank() == 3);
  CHECK(std::string(r.owner()) == "rank 3");
  CHECK(r.program().rank == 3);
}

TEST_CASE("a program as it is recorded, one instruction after the other") {
  dry::recorder r("rank 1", 1);
  two_streams(r);
  CHECK(r.findings().empty());
  CHECK(r.operations() == operations);
  CHECK(r.waits() == waits);
  CHECK_FALSE(r.dropped());
  CHECK(actions(r) == std::vector<action>{action::open_stream, action::open_stream, action::operation,
                                          action::wait, action::operation, action::wait, action::operation,
                                          action::host_wait, action::operation, action::host_wait,
                                          action::close_stream, action::close_stream});
  const auto& list = r.program().instructions;
  CHECK(r.program().stream_names == std::vector<std::string>{"a", "b"});
  CHECK(list[0].stream == 1);
  CHECK(list[1].stream == 2);
  CHECK(list[1].name == 1);
  CHECK(list[2].stream == 1);
  CHECK(std::string(label_of(r, list[2]).name) == "produce");
  CHECK(label_of(r, list[2]).at.line == 10);
  // b waits for the first command of a; a for b's two, of which one is the wait.
  CHECK(list[3].stream == 2);
  CHECK(list[3].other == 1);
  CHECK(list[3].bytes == 1);
  CHECK(label_of(r, list[3]).at.line == 11);
  CHECK(list[5].stream == 1);
  CHECK(list[5].other == 2);
  CHECK(list[5].bytes == 2);
  CHECK(list[7].stream == 0);
  CHECK(list[7].other == 1);
  CHECK(list[7].bytes == 3);
  CHECK(list[7].round_trip == 1);
  CHECK(list[9].round_trip == 0);
  CHECK(list[10].stream == 2);
  CHECK(list[10].bytes == 3);
}

TEST_CASE("what an operation costs is kept as it is") {
  dry::recorder r;
  const auto s = r.open_stream("main");
  r.issue(s, {"program.cpp", 5}, "gemm", {engine::compute, 1e15, pl::scalar_kind::bf16, 1ull << 40}, {});
  CHECK(last(r).on == engine::compute);
  CHECK(last(r).flops == 1e15);
  CHECK(last(r).type == pl::scalar_kind::bf16);
  CHECK(last(r).bytes == 1ull << 40);
  r.issue(s, {}, "copy", {engine::host_to_device, 0, pl::scalar_kind::none, 7}, {});
  CHECK(last(r).on == engine::host_to_device);
  CHECK(last(r).type == pl::scalar_kind::none);
}

TEST_CASE("waits that cannot matter are neither counted nor recorded") {
  dry::recorder r;
  const auto s = r.open_stream("main");
  r.wait(s, {}, {"program.cpp", 1});
  r.wait(0, {}, {"program.cpp", 2});
  r.wait(s, r.record(s), {"program.cpp", 3});
  CHECK(r.waits() == 0);
  CHECK(r.program().instructions.size() == 1);
  r.wait(0, r.record(s), {"program.cpp", 4}); // though nothing was issued
  CHECK(r.waits() == 1);
  CHECK(last(r).bytes == 0);
}

TEST_CASE("drop_wait: each wait is missed, and its line is known") {
  const int lines[] = {11, 13, 15, 18};
  const char* const objections[][2] = {{"'double'", "'produce'"},
                                       {"'triple'", "'double'"},
                                       {"'look'", "'triple'"},
                                       {"'last'", "the host frees"}};
  for (std::uint64_t k = 0; k < waits; ++k) {
    CAPTURE(k);
    dry_options options;
    options.drop_wait = k;
    dry::recorder r("rank 0", 0, options);
    two_streams(r);
    CHECK(r.waits() == waits);
    REQUIRE(r.dropped());
    CHECK(r.dropped()->line == lines[k]);
    CHECK(r.dropped()->text() == " at program.cpp:" + std::to_string(lines[k]));
    REQUIRE_FALSE(r.findings().empty());
    const std::string text = r.text_of(r.findings()[0]);
    CHECK(has(text, "plateau: rank 0: "));
    CHECK(has(text, objections[k][0]));
    CHECK(has(text, objections[k][1]));
    // It is not in the program either: nothing waits where it stood.
    for (const dry::instruction& i : r.program().instructions)
      if (i.what == action::wait || i.what == action::host_wait) CHECK(label_of(r, i).at.line != lines[k]);
  }
  dry_options options;
  options.drop_wait = waits;
  dry::recorder r("rank 0", 0, options);
  two_streams(r);
  CHECK_FALSE(r.dropped());
  CHECK(r.findings().empty());
}

TEST_CASE("throw_at: each operation fails with its name, its stream and its line, and is not recorded") {
  const char* const names[] = {
      "'produce' on stream 'a' at program.cpp:10", "'double' on stream 'b' at program.cpp:12",
      "'triple' on stream 'a' at program.cpp:14", "'look' of the host at program.cpp:16",
      "'last' on stream 'b' at program.cpp:17"};
  for (std::uint64_t k = 0; k < operations; ++k) {
    CAPTURE(k);
    for (const bool recorded : {true, false}) {
      dry_options options;
      options.throw_at = k;
      options.record_program = options.check_order = recorded;
      dry::recorder r("rank 2", 2, options);
      std::string text;
      try {
        two_streams(r);
      } catch (const pl::backend_error& e) {
        text = e.what();
      }
      CHECK(has(text, "plateau: rank 2: "));
      CHECK(has(text, names[k]));
      CHECK(has(text, "operation " + std::to_string(k) + " fails"));
      CHECK(r.operations() == k + 1);
      CHECK(r.findings().empty());
      for (const dry::instruction& i : r.program().instructions)
        if (i.what == action::operation) CHECK(label_of(r, i).at.line < 10 + 2 * static_cast<int>(k));
    }
  }
  dry_options options;
  options.throw_at = operations;
  dry::recorder r("rank 2", 2, options);
  two_streams(r);
}

TEST_CASE("only_rank: faults are made there and nowhere else") {
  for (const int only : {-1, 0, 1, 2}) {
    dry_options options;
    options.only_rank = only;
    options.drop_wait = 0;
    dry::recorder dropping("", 1, options);
    two_streams(dropping);
    CHECK(dropping.dropped().has_value() == (only == -1 || only == 1));
    options.drop_wait = dry_options::never;
    options.throw_at = 2;
    dry::recorder throwing("", 1, options);
    if (only == -1 || only == 1)
      CHECK_THROWS_AS(two_streams(throwing), pl::backend_error);
    else
      two_streams(throwing);
  }
}

TEST_CASE("check_order = false finds nothing; record_program = false records nothing") {
  dry_options options;
  options.drop_wait = 0;
  options.check_order = false;
  dry::recorder unchecked("", 0, options);
  two_streams(unchecked);
  CHECK(unchecked.findings().empty());
  CHECK(unchecked.found() == 0);
  CHECK(unchecked.dropped());
  CHECK(unchecked.program().instructions.size() == 11);
  unchecked.adopted(&options, 8, 1);
  unchecked.retired(memory, 8);

  options.check_order = true;
  options.record_program = false;
  dry::recorder unrecorded("rank 0", 0, options);
  two_streams(unrecorded);
  unrecorded.mark("here");
  unrecorded.host_exchange("vote", 0, 0, 8);
  unrecorded.observer(pl::memory_kind::device).held(tag::other, 8);
  unrecorded.observer(pl::memory_kind::device).phase("forward");
  CHECK(unrecorded.program().instructions.empty());
  CHECK(unrecorded.program().host_exchanges.empty());
  CHECK(unrecorded.program().stream_names.empty());
  REQUIRE_FALSE(unrecorded.findings().empty()); // with names and lines
  const std::string text = unrecorded.text_of(unrecorded.findings()[0]);
  CHECK(has(text, "'double' (operation 1) on stream 'b' at program.cpp:12"));
  CHECK(has(text, "'produce' (operation 0) on stream 'a' at program.cpp:10"));

  options.check_order = false;
  dry::recorder bare("", 0, options);
  two_streams(bare);
  CHECK(bare.operations() == operations);
  CHECK(bare.waits() == waits);
  CHECK(bare.dropped());
  CHECK(bare.program().labels.empty());
}

TEST_CASE("a stream's number is used again for its name only, and counts on") {
  dry::recorder r;
  const auto a = r.open_stream("a");
  issue(r, a, 1, "first", {});
  const dry::event old = r.record(a);
  r.close_stream(a);
  const auto b = r.open_stream("b");
  CHECK(b != a);
  CHECK(r.open_stream("a") == a);
  issue(r, a, 2, "second", {});
  CHECK(r.record(a).commands == 2);
  CHECK(old.commands == 1);
  const auto other = r.open_stream("a"); // two of one name at a time
  CHECK(other != a);
  CHECK(r.name_of(a) == "a");
  CHECK(r.name_of(b) == "b");
  CHECK(r.name_of(other) == "a");
  CHECK(r.name_of(0) == "the host");
}

TEST_CASE("closing a stream is a wait of the host: what it used may go then, and not before") {
  for (const bool early : {false, true}) {
    dry::recorder r("rank 0");
    const auto s = r.open_stream("main");
    r.allocated(memory, 64, "device", tag::dispatch);
    issue(r, s, 20, "fill", {bytes(0, 64, touch::write)});
    if (early) r.freed(memory);
    r.close_stream(s);
    if (!early) {
      r.freed(memory);
      CHECK(r.findings().empty());
    } else {
      const std::string text = only_finding(r);
      CHECK(has(text, "the host frees device allocation 0 (dispatch)"));
      CHECK(has(text, "'fill' (operation 0) on stream 'main' at program.cpp:20"));
    }
  }
}

TEST_CASE("as many streams as a number can name, and one error more") {
  dry_options options;
  options.check_order = options.record_program = false;
  dry::recorder r("rank 0", 0, options);
  for (int i = 0; i < 65'535; ++i) r.open_stream("s");
  std::string text;
  try {
    r.open_stream("one more");
  } catch (const pl::backend_error& e) {
    text = e.what();
  }
  CHECK(has(text, "rank 0"));
  CHECK(has(text, "'one more'"));
  CHECK(has(text, "65535"));
  r.close_stream(65'535);
  CHECK(r.open_stream("s") == 65'535);
}

TEST_CASE("exchanges: what they read and write is checked, zero bytes are left out, groups are listed") {
  dry::recorder r("rank 1", 1);
  const auto s = r.open_stream("main"), t = r.open_stream("side");
  r.allocated(memory, 128, "device", tag::dispatch);
  const auto group = r.add_group({"/0", {1, 3}, 0});
  CHECK(group == 0);
  CHECK(r.add_group({"", {0, 1, 2, 3}, 1}) == 1);
  auto* p = reinterpret_cast<unsigned char*>(memory);
  issue(r, s, 30, "fill", {bytes(0, 64, touch::write)});
  r.wait(t, r.record(s), {});
  r.exchange(s, {"program.cpp", 31}, "dispatch", group, 7,
             {pl::send_op{p, 64, 1}, pl::send_op{nullptr, 0, 0}},
             {pl::receive_op{nullptr, 0, 1}, pl::receive_op{p + 64, 32, 1}});
  CHECK(r.findings().empty());
  CHECK(r.operations() == 2);
  REQUIRE(last(r).what == action::exchange);
  CHECK(last(r).on == engine::network);
  CHECK(label_of(r, last(r)).at.line == 31);
  const dry::exchange_record& e = r.program().exchanges[last(r).index];
  CHECK(e.group == group);
  CHECK(e.index == 7);
  REQUIRE(e.sends.size() == 1);
  CHECK(e.sends[0].peer == 1);
  CHECK(e.sends[0].bytes == 64);
  REQUIRE(e.receives.size() == 1);
  CHECK(e.receives[0].bytes == 32);
  issue(r, s, 32, "use", {bytes(64, 32, touch::read)}); // what was received is there
  CHECK(r.findings().empty());
  issue(r, t, 33, "overwrite", {bytes(0, 64, touch::write)}); // while it may be on its way
  CHECK(has(only_finding(r), "'overwrite' (operation 3) on stream 'side' at program.cpp:33 writes what "
                             "'dispatch' (operation 1) on stream 'main' at program.cpp:31 reads"));
}

TEST_CASE("host exchanges, marks, memory and phases are in the program where they happened") {
  dry::recorder r;
  r.host_exchange("vote", 3, 4, 16);
  r.mark("a step begins");
  r.observer(pl::memory_kind::device).held(tag::gradients, 4096);
  r.observer(pl::memory_kind::pinned_host).held(tag::optimizer, 1ull << 40);
  r.observer(pl::memory_kind::device).phase("forward");
  r.observer(pl::memory_kind::pinned_host).phase("forward"); // of the program, not of a pool: once
  const auto& list = r.program().instructions;
  REQUIRE(actions(r) == std::vector<action>{action::host_exchange, action::mark, action::memory,
                                            action::memory, action::phase});
  const auto& given = r.program().host_exchanges[list[0].index];
  CHECK(given.group == 3);
  CHECK(given.index == 4);
  CHECK(given.bytes == 16);
  CHECK(std::string(label_of(r, list[0]).name) == "vote");
  CHECK(std::string(label_of(r, list[1]).name) == "a step begins");
  CHECK(list[2].other == 0);
  CHECK(list[2].stream == static_cast<std::uint16_t>(tag::gradients));
  CHECK(list[2].bytes == 4096);
  CHECK(list[3].other == 1);
  CHECK(list[3].bytes == 1ull << 40);
  CHECK(std::string(label_of(r, list[4]).name) == "forward");
  CHECK_FALSE(r.program().ended_by);
  r.ended_by({pl::failure::kind::budget, "no memory"});
  REQUIRE(r.program().ended_by);
  CHECK(r.program().ended_by->text == "no memory");
}

TEST_CASE("memory that is adopted, retired, freed") {
  dry::recorder r("rank 0");
  const auto s = r.open_stream("main");
  float own[16] = {};
  const auto at = reinterpret_cast<std::uintptr_t>(own);
  const access_range mine{at, sizeof own, 1, 0, 1, 0, touch::read};
  issue(r, s, 40, "read", {mine});
  CHECK(has(only_finding(r), "'read' (operation 0) on stream 'main' at program.cpp:40 reads 64 bytes that no "
                             "resource of this backend gave out"));
  dry::recorder q("rank 0");
  const auto t = q.open_stream("main");
  q.adopted(own, 0, t);
  q.adopted(own, sizeof own, t);
  issue(q, t, 41, "read", {mine});
  CHECK(q.findings().empty());

  q.allocated(memory, 64, "device", tag::workspace);
  issue(q, t, 42, "fill", {bytes(0, 64, touch::write)});
  q.retired(memory, 32);
  issue(q, t, 43, "fresh", {bytes(32, 32, touch::read)});
  CHECK(q.findings().empty());
  issue(q, t, 44, "stale", {bytes(16, 32, touch::read)});
  CHECK(
      has(only_finding(q), "'stale' (operation 3) on stream 'main' at program.cpp:44 reads bytes [16, 32)"));
  q.wait(0, q.record(t), {});
  q.freed(memory);
  issue(q, t, 45, "late", {bytes(0, 1, touch::write)});
  REQUIRE(q.findings().size() == 2);
  CHECK(has(q.text_of(q.findings()[1]), "which was freed before"));
}
