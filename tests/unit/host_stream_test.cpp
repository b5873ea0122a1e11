// SPDX-License-Identifier: Apache-2.0
//
// Host streams: program order on one, events across several, failures that travel along events but not
// backwards, and ends: a destructor waits, unless an exception passes through. Meant to run under the thread
// sanitizer too.
#include <plateau/host/stream.hpp>

#include <doctest/doctest.h>

#if defined(__GLIBC__)
#include <pthread.h>
#endif

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace pl = plateau;
using pl::failure;
using pl::host::event;
using pl::host::stream;

class gate {
 public:
  void open() {
    open_.store(true);
    open_.notify_all();
  }
  void pass() const { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

TEST_CASE("commands run in the order in which they were issued") {
  std::vector<int> log;
  {
    stream s("main");
    CHECK(s.name() == "main");
    for (int i = 0; i < 1000; ++i) s.push([&log, i] { log.push_back(i); });
  } // the destructor waits for all of them
  REQUIRE(log.size() == 1000);
  for (int i = 0; i < 1000; ++i) REQUIRE(log[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a default event counts as done, on the host and on a stream") {
  const event none;
  none.wait();
  stream s("main");
  s.wait(none);
  int x = 0;
  s.push([&] { x = 1; });
  s.record().wait();
  CHECK(x == 1);
  CHECK_NOTHROW(stream("idle").record().wait()); // nothing was issued, and the stream is gone
}

TEST_CASE("recording orders what came before, not what comes after") {
  gate later;
  stream s("main");
  int x = 0;
  s.push([&] { x = 1; });
  const event e = s.record();
  s.push([&] { later.pass(); });
  e.wait(); // though the stream is held up behind it
  CHECK(x == 1);
  later.open();
}

TEST_CASE("an event may be waited for many times, from copies, and after its stream has gone") {
  std::optional<stream> s(std::in_place, "short-lived");
  int x = 0;
  s->push([&] { x = 5; });
  const event e = s->record(), copy = e;
  s.reset();
  e.wait();
  copy.wait();
  stream other("other");
  other.wait(copy);
  other.push([&] { ++x; });
  other.record().wait();
  CHECK(x == 6);
}

TEST_CASE("events carry order across streams: a relay without atomics") {
  std::vector<int> plain(100, 0);
  {
    stream a("a"), b("b"), c("c");
    for (int round = 0; round < 200; ++round) {
      a.push([&] {
        for (int& x : plain) ++x;
      });
      b.wait(a.record());
      b.push([&] {
        for (int& x : plain) x *= 2;
      });
      c.wait(b.record());
      c.push([&, round] {
        for (int& x : plain) x -= round;
      });
      a.wait(c.record());
      a.push([&] {
        for (int& x : plain) x %= 1009;
      });
    }
  }
  int expected = 0;
  for (int round = 0; round < 200; ++round) expected = ((expected + 1) * 2 - round) % 1009;
  for (const int x : plain) REQUIRE(x == expected);
}

TEST_CASE("two streams make progress independently") {
  gate reached;
  stream a("a"), b("b");
  a.push([&] { reached.pass(); }); // only b's command lets it go on
  b.push([&] { reached.open(); });
  a.record().wait();
  CHECK(true); // it would hang otherwise
}

TEST_CASE("waiting for an event of the same stream is nothing") {
  stream s("main");
  s.push([] {});
  const auto before = s.ring()->issued();
  s.wait(s.record());
  CHECK(s.ring()->issued() == before);
}

TEST_CASE("a failure names its stream and the line that issued the command, once, and keeps its kind") {
  stream a("first"), b("second");
  a.push([] { throw pl::budget_exceeded("no room"); }, {"model.hpp", 12});
  b.wait(a.record());
  const event bad = b.record();
  CHECK_THROWS_WITH_AS(bad.wait(), "no room (on stream 'first' at model.hpp:12)", pl::budget_exceeded);
}

#if defined(__GLIBC__)
TEST_CASE("a machine without threads is a backend_error that names the stream") {
  pthread_attr_t attributes, huge;
  REQUIRE(pthread_getattr_default_np(&attributes) == 0);
  REQUIRE(pthread_attr_init(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0); // more than there are addresses
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  std::string text;
  try {
    const stream s("compute");
  } catch (const pl::backend_error& e) {
    text = e.what();
  }
  REQUIRE(pthread_setattr_default_np(&attributes) == 0);
  CHECK(text.find("no thread for stream 'compute'") != std::string::npos);
  pthread_attr_destroy(&attributes);
  pthread_attr_destroy(&huge);
}
#endif

TEST_CASE("a failure latches, and surfaces where the host waits") {
  stream s("main");
  int x = 0;
  const event before = s.record();
  s.push([&] { x = 1; });
  const event good = s.record();
  s.push([] { throw pl::budget_exceeded("no room for the slot"); });
  const event bad = s.record();
  s.push([&] { x = 2; });
  CHECK_NOTHROW(before.wait());
  CHECK_THROWS_WITH_AS(bad.wait(), "no room for the slot (on stream 'main')", pl::budget_exceeded);
  CHECK_THROWS_AS(s.record().wait(), pl::budget_exceeded);
  CHECK_THROWS_AS(bad.wait(), pl::budget_exceeded); // each time
  CHECK_NOTHROW(good.wait());                       // recorded before the failure
  CHECK(x == 1);
}

TEST_CASE("a failure travels along events to those that wait for it, with its cause") {
  stream a("a"), b("b"), c("c"), apart("apart");
  std::atomic<int> ran{0};
  const event early = a.record();
  a.push([] { throw pl::collective_error(3, "exchange", 8, "peer lost"); });
  const event bad = a.record();
  b.wait(bad);
  b.push([&] { ++ran; });
  c.wait(b.record());
  c.push([&] { ++ran; });
  apart.wait(early); // what came before the failure is none of its business
  apart.push([&] { ran += 100; });

  bool exact = false;
  try {
    c.record().wait();
  } catch (const pl::collective_error& e) {
    exact = e.failed_rank == 3 && e.sequence == 8 && e.cause == "peer lost" && e.operation == "exchange";
  }
  CHECK(exact);
  CHECK_NOTHROW(apart.record().wait());
  CHECK(ran == 100);
}

// A command that a peer waits for: it tells the peer in either case.
struct notifying {
  std::atomic<int>& ran;
  std::atomic<int>& skipped_count;
  void operator()() const { ++ran; }
  void skipped(const failure&) const { ++skipped_count; }
};

TEST_CASE("a destructor lets everything run when nothing went wrong") {
  std::atomic<int> ran{0}, skipped{0};
  {
    stream s("main");
    for (int i = 0; i < 100; ++i) s.push(notifying{ran, skipped});
  }
  CHECK(ran == 100);
  CHECK(skipped == 0);
}

TEST_CASE("while an exception passes through, what has not begun is skipped, and told so") {
  std::atomic<int> ran{0}, skipped{0};
  gate begun;
  std::string text;
  try {
    stream s("main");
    s.push([&begun, &ring = *s.ring()] { // runs until the stream's destructor gives up
      gate ended;
      ring.interruptible([](void* g, const failure&) { static_cast<gate*>(g)->open(); }, &ended);
      begun.open();
      ended.pass();
      ring.interruptible(nullptr, nullptr);
    });
    for (int i = 0; i < 100; ++i) s.push(notifying{ran, skipped});
    begun.pass();
    throw std::runtime_error("the caller's own");
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  CHECK(text == "the caller's own");
  CHECK(ran == 0);
  CHECK(skipped == 100);
}

TEST_CASE("a stream that lives and dies inside a handler is not taken for one that unwinds") {
  std::atomic<int> ran{0}, skipped{0};
  struct during_unwinding {
    std::atomic<int>&ran, &skipped;
    ~during_unwinding() {
      stream s("clean-up"); // an exception is in flight, but none passes through the scope of this stream
      for (int i = 0; i < 10; ++i) s.push(notifying{ran, skipped});
    }
  };
  try {
    const during_unwinding d{ran, skipped};
    throw 1;
  } catch (int) {
  }
  CHECK(ran == 10);
  CHECK(skipped == 0);
}

TEST_CASE("unwinding does not wait for a stream that is itself still held up") {
  gate hold;
  std::atomic<int> ran{0}, skipped{0};
  std::optional<stream> slow(std::in_place, "slow");
  slow->push([&] { hold.pass(); });
  try {
    stream s("waits");
    s.wait(slow->record());
    s.push(notifying{ran, skipped});
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // so that it has begun to wait
    throw std::runtime_error("the caller's own");
  } catch (const std::runtime_error&) {
  }
  // It would hang above if the wait for the event were not interrupted: only now may the slow stream go on.
  hold.open();
  slow->record().wait();
  CHECK(ran == 0);
  CHECK(skipped == 1);
}

TEST_CASE("a stream can be moved; the events and commands go with it") {
  static_assert(std::is_nothrow_move_constructible_v<stream> && !std::is_copy_constructible_v<stream>);
  std::vector<int> log;
  stream a("main");
  a.push([&] { log.push_back(1); });
  const event e = a.record();
  stream b(std::move(a));
  b.push([&] { log.push_back(2); });
  b.wait(e); // the same stream still
  b.record().wait();
  CHECK(log == std::vector<int>{1, 2});
  CHECK(b.name() == "main");
}

TEST_CASE("an event keeps no command alive, and a command may keep an event") {
  const auto token = std::make_shared<int>(0);
  event e;
  {
    stream a("a"), b("b");
    a.push([token] {});
    e = a.record();
    b.push([token, e] { e.wait(); });
  }
  e.wait();
  CHECK(token.use_count() == 1);
}

} // namespace
