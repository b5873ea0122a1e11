// SPDX-License-Identifier: Apache-2.0
//
// The command ring: order through many rounds of mixed sizes, waiting when it is full, boxes for what is too
// large, every command destroyed exactly once, no allocation per push, failures told to those who come after,
// and interruption. Meant to run under the thread sanitizer too.
#include <plateau/host/command_ring.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {
std::atomic<std::uint64_t> allocations{0};
} // namespace

// Not inlined: g++ would see malloc and free on one side only, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

namespace pl = plateau;
using pl::failure;
using pl::host::command_ring;

constexpr std::size_t ring_bytes = command_ring::ring_bytes;

// A ring and its worker.
struct running_ring {
  command_ring ring;
  std::thread worker{[this] { ring.work(); }};
  ~running_ring() {
    ring.stop();
    worker.join();
  }
};

// Holds commands back until it is opened.
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

// A command of a given size that checks its payload when it runs.
template <std::size_t Bytes> struct padded {
  std::vector<int>* log;
  int number;
  std::array<unsigned char, Bytes> payload;

  padded(std::vector<int>& to, int n) : log(&to), number(n) { payload.fill(static_cast<unsigned char>(n)); }
  void operator()() const {
    for (const unsigned char byte : payload)
      if (byte != static_cast<unsigned char>(number)) throw std::runtime_error("a payload was overwritten");
    log->push_back(number);
  }
};

TEST_CASE("commands of mixed sizes run in order through many rounds of the ring") {
  std::vector<int> log;
  std::uint64_t pushed_bytes = 0;
  int count = 0;
  {
    running_ring r;
    std::mt19937 random(7);
    log.reserve(100'000);
    const auto push = [&](auto command) {
      r.ring.push(command);
      pushed_bytes += sizeof(command);
    };
    for (; pushed_bytes < 12 * ring_bytes; ++count) {
      switch (random() % 7) {
      case 0:
        push(padded<8>(log, count));
        break;
      case 1:
        push(padded<100>(log, count));
        break;
      case 2:
        push(padded<1000>(log, count));
        break;
      case 3:
        push(padded<4097>(log, count));
        break;
      case 4:
        push(padded<ring_bytes / 17>(log, count));
        break;
      case 5:
        push(padded<ring_bytes / 5>(log, count));
        break;
      default:
        push(padded<ring_bytes / 2 - 64>(log, count));
        break; // the largest that needs no box
      }
    }
    CHECK(r.ring.issued() == static_cast<std::uint64_t>(count));
    r.ring.wait(r.ring.issued()); // throws when a payload was overwritten
  }
  REQUIRE(log.size() == static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    if (log[static_cast<std::size_t>(i)] != i) FAIL("out of order at " << i);
}

TEST_CASE("a ring that fills behind a slow command wraps round without touching what waits in it") {
  // The same sizes many times, with the worker held until the ring is nearly full, so that head and tail meet
  // at every offset that these sizes reach.
  for (int first = 0; first < 40; ++first) {
    std::vector<int> log;
    log.reserve(1000);
    running_ring r;
    int n = 0;
    for (; n < first; ++n) r.ring.push(padded<ring_bytes / 29>(log, n));
    gate start;
    r.ring.push([&] { start.pass(); });
    std::thread late([&] { start.open(); });
    for (int i = 0; i < 12; ++i, ++n) r.ring.push(padded<ring_bytes / 3>(log, n));
    for (int i = 0; i < 12; ++i, ++n) r.ring.push(padded<ring_bytes / 31>(log, n));
    late.join();
    r.ring.wait(r.ring.issued());
    REQUIRE(log.size() == static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) REQUIRE(log[static_cast<std::size_t>(i)] == i);
  }
}

// Waits at a gate, and finds its payload as it was.
template <std::size_t Bytes> struct held {
  const gate* g;
  padded<Bytes> then;
  void operator()() const {
    g->pass();
    then();
  }
};

TEST_CASE("a command that would reach the one that runs waits for it, by 64 bytes as well") {
  std::vector<int> log;
  running_ring r;
  gate first, second;
  const std::uint64_t before = r.ring.push(held<ring_bytes / 4>{&first, {log, 1}});
  r.ring.push(held<ring_bytes * 9 / 20>{&second, {log, 2}}); // runs from a quarter of the ring on
  first.open();
  r.ring.wait(before);
  r.ring.push(padded<ring_bytes / 4>(log, 3)); // now less than a twentieth is left behind it
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // time for a mistake, not for the right thing
    second.open();
  });
  r.ring.push(padded<ring_bytes / 4 + 128>(log, 4)); // more than lies in front of it
  opener.join();
  r.ring.wait(4);
  CHECK(log == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("pushing into a full ring waits until there is room") {
  running_ring r;
  std::vector<int> log;
  gate start;
  std::atomic<int> pushed{0};
  r.ring.push([&] { start.pass(); });
  std::thread host([&] {
    for (int i = 0; i < 8; ++i) {
      r.ring.push(padded<ring_bytes / 3>(log, i));
      pushed.fetch_add(1);
      pushed.notify_all();
    }
  });
  for (int now = pushed.load(); now < 2; now = pushed.load()) pushed.wait(now);
  CHECK(pushed.load() == 2); // a third does not fit while nothing runs, however long the host thread had
  CHECK(r.ring.issued() == 3);
  start.open();
  host.join();
  r.ring.wait(r.ring.issued());
  CHECK(log == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("a command larger than the ring is boxed") {
  std::vector<int> log;
  {
    running_ring r;
    r.ring.push([&] { log.push_back(0); });
    r.ring.push(padded<ring_bytes + 1>(log, 1));
    r.ring.push(padded<ring_bytes / 2>(log, 2)); // just too large to lie in the ring
    r.ring.push([&] { log.push_back(3); });
    r.ring.wait(4);
  }
  CHECK(log == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("from the second round on, pushing allocates nothing") {
  running_ring r;
  std::atomic<std::uint64_t> sum{0};
  const auto shared = std::make_shared<int>(1);
  const auto round = [&] {
    for (int i = 0; i < 4 * static_cast<int>(ring_bytes / 200); ++i) {
      std::array<char, 100> payload{};
      r.ring.push(
          [&sum, shared, payload] { sum.fetch_add(static_cast<std::uint64_t>(*shared + payload[3])); });
    }
    r.ring.wait(r.ring.issued());
  };
  round();
  const std::uint64_t before = allocations.load();
  round();
  round();
  CHECK(allocations.load() == before);
  CHECK(sum.load() == 3 * 4 * (ring_bytes / 200));
}

// Counts how many objects live, how many ran and how many were told of a failure.
struct tally {
  std::atomic<int> live{0}, ran{0}, skipped{0};
};
template <std::size_t Bytes = 1> struct counted {
  tally* t;
  std::array<char, Bytes> payload{};
  explicit counted(tally& to) : t(&to) { ++t->live; }
  counted(const counted& other) : t(other.t) { ++t->live; }
  ~counted() { --t->live; }
  void operator()() const { ++t->ran; }
  void skipped(const failure&) const { ++t->skipped; }
};

TEST_CASE("every command is destroyed exactly once, whether it ran, was skipped or was boxed") {
  tally t;
  {
    running_ring r;
    for (int i = 0; i < 100; ++i) r.ring.push(counted<>(t));
    r.ring.push(counted<ring_bytes / 2>(t));
    r.ring.wait(r.ring.issued());
    CHECK(t.live == 0); // and not only with the ring
    CHECK(t.ran == 101);
    r.ring.push([] { throw 1; });
    for (int i = 0; i < 100; ++i) r.ring.push(counted<>(t));
    r.ring.push(counted<ring_bytes / 2>(t));
    CHECK_THROWS_AS(r.ring.wait(r.ring.issued()), pl::error);
    CHECK(t.live == 0);
    CHECK(t.ran == 101);
    CHECK(t.skipped == 101);
    for (int i = 0; i < 10; ++i) r.ring.push(counted<>(t)); // the worker's end empties the ring first
  }
  CHECK(t.live == 0);
  CHECK(t.skipped == 111);
}

TEST_CASE("a failure is told to later commands, and to those who wait for it or for later ones") {
  running_ring r;
  gate start;
  std::string told;
  bool ran = false;
  struct listener {
    std::string* told;
    bool* ran;
    void operator()() const { *ran = true; }
    void skipped(const failure& why) const { *told = why.text; }
  };
  r.ring.push([&] { start.pass(); });
  const std::uint64_t before = r.ring.push([] {});
  const std::uint64_t failing = r.ring.push([] { throw pl::backend_error("kernel 7 failed"); });
  const std::uint64_t second = r.ring.push([] { throw pl::config_error("never reached"); });
  const std::uint64_t after = r.ring.push(listener{&told, &ran});
  start.open();
  CHECK_NOTHROW(r.ring.wait(before));
  CHECK_THROWS_WITH_AS(r.ring.wait(failing), "kernel 7 failed", pl::backend_error);
  CHECK_THROWS_AS(r.ring.wait(second), pl::backend_error);
  CHECK_THROWS_AS(r.ring.wait(after), pl::backend_error);
  CHECK_NOTHROW(r.ring.wait(before)); // still: what came before did not fail
  CHECK_FALSE(ran);
  CHECK(told == "kernel 7 failed");
}

TEST_CASE("a command whose skipped() throws does not replace the first failure") {
  running_ring r;
  struct clumsy {
    void operator()() const {}
    void skipped(const failure&) const { throw pl::config_error("second"); }
  };
  r.ring.push([] { throw pl::backend_error("first"); });
  r.ring.push(clumsy{});
  CHECK_THROWS_WITH_AS(r.ring.wait(2), "first", pl::backend_error);
}

TEST_CASE("a command that cannot be moved into the ring is not issued, and harms nothing") {
  struct stubborn {
    int* runs;
    explicit stubborn(int* r) : runs(r) {}
    stubborn(stubborn&&) { throw std::runtime_error("no move"); }
    void operator()() const { ++*runs; }
  };
  running_ring r;
  std::vector<int> log;
  int runs = 0;
  for (int i = 0; i < 50; ++i) {
    r.ring.push(padded<ring_bytes / 7>(log, i));
    CHECK_THROWS_WITH_AS(r.ring.push(stubborn(&runs)), "no move", std::runtime_error);
  }
  CHECK(r.ring.issued() == 50);
  r.ring.wait(50);
  CHECK(log.size() == 50);
  CHECK(runs == 0);
}

TEST_CASE("abandon skips what has not begun, and keeps an earlier failure") {
  tally t;
  running_ring r;
  gate started, go_on;
  r.ring.push([&] {
    started.open();
    go_on.pass();
  });
  for (int i = 0; i < 10; ++i) r.ring.push(counted<>(t));
  started.pass();
  r.ring.abandon({failure::kind::config, "given up"});
  r.ring.abandon({failure::kind::backend, "given up again"});
  go_on.open();
  CHECK_THROWS_WITH_AS(r.ring.wait(r.ring.issued()), "given up", pl::config_error);
  CHECK(t.ran == 0);
  CHECK(t.skipped == 10);
}

// A command that waits for something that never comes, and can be told to stop.
struct waiting {
  command_ring* ring;
  gate* begun;
  std::string* why;
  void operator()() const {
    struct state {
      std::atomic<bool> told{false};
      std::string why;
    } s;
    ring->interruptible(
        [](void* p, const failure& f) {
          auto& to = *static_cast<state*>(p);
          if (to.told.load()) return;
          to.why = f.text;
          to.told.store(true);
          to.told.notify_all();
        },
        &s);
    begun->open();
    s.told.wait(false);
    ring->interruptible(nullptr, nullptr);
    *why = s.why;
  }
};

TEST_CASE("abandon interrupts a command that waits, whether it had begun to wait or not") {
  for (const bool wait_first : {true, false}) {
    std::string why;
    gate begun;
    running_ring r;
    r.ring.push(waiting{&r.ring, &begun, &why});
    if (wait_first) begun.pass();
    r.ring.abandon({failure::kind::other, "enough"});
    CHECK_THROWS_WITH_AS(r.ring.wait(1), "enough", pl::error);
    // Either it was interrupted, or it had not begun and was skipped.
    CHECK((why == "enough" || (why.empty() && !wait_first)));
  }
}

TEST_CASE("a command that waits on another ring ends with it, or when its own ring is abandoned") {
  running_ring awaited, waiter;
  gate hold, begun;
  awaited.ring.push([&] { hold.pass(); });
  waiter.ring.push([&] {
    begun.open();
    awaited.ring.wait(1, waiter.ring);
  });
  begun.pass(); // it runs: it will not be skipped
  waiter.ring.abandon({failure::kind::other, "leaving"});
  CHECK_THROWS_WITH_AS(waiter.ring.wait(1), "leaving", pl::error); // though the awaited command still runs
  hold.open();
  CHECK_NOTHROW(awaited.ring.wait(1));

  running_ring other;
  awaited.ring.push([] { throw pl::backend_error("over there"); });
  other.ring.push([&] { awaited.ring.wait(1, other.ring); });
  CHECK_NOTHROW(other.ring.wait(1));
  other.ring.push([&] { awaited.ring.wait(2, other.ring); });
  CHECK_THROWS_WITH_AS(other.ring.wait(2), "over there", pl::backend_error);
}

TEST_CASE("several threads may wait for the same command") {
  running_ring r;
  gate start;
  std::atomic<int> value{0};
  r.ring.push([&] { start.pass(); });
  const std::uint64_t ticket = r.ring.push([&] { value = 42; });
  std::array<int, 4> seen{};
  std::vector<std::thread> waiters;
  for (int& s : seen)
    waiters.emplace_back([&r, &s, &value, ticket] {
      r.ring.wait(ticket);
      s = value;
    });
  start.open();
  for (std::thread& t : waiters) t.join();
  for (const int s : seen) CHECK(s == 42);
}

TEST_CASE("what a command wrote is visible to the host that waited for it") {
  running_ring r;
  std::vector<int> plain(1000); // no atomics: the ring itself must order these
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = round;
    r.ring.push([&] {
      for (int& x : plain) ++x;
    });
    r.ring.wait(r.ring.issued());
    for (const int x : plain) REQUIRE(x == round + 1);
  }
}

// A command with bytes beside itself, whose number it checks when it runs.
struct with_extra {
  std::vector<int>* log;
  int number;
  const unsigned char* p;
  std::size_t bytes;

  void operator()() const {
    if (reinterpret_cast<std::uintptr_t>(p) % alignof(std::max_align_t) != 0)
      throw std::runtime_error("extra bytes that are not aligned");
    for (std::size_t i = 0; i < bytes; ++i)
      if (p[i] != static_cast<unsigned char>(number))
        throw std::runtime_error("extra bytes were overwritten");
    log->push_back(number);
  }
  void skipped(const failure&) const { log->push_back(-number); }
};
void push_with(command_ring& ring, std::vector<int>& log, int number, std::size_t bytes) {
  ring.push_with(bytes, [&](unsigned char* p) {
    std::fill_n(p, bytes, static_cast<unsigned char>(number));
    return with_extra{&log, number, p, bytes};
  });
}

TEST_CASE("bytes beside a command lie in the ring, through many rounds, and cost no allocation") {
  running_ring r;
  std::vector<int> log;
  log.reserve(10'000);
  std::mt19937 random(5);
  const std::uint64_t before = allocations;
  std::size_t pushed_bytes = 0;
  int count = 0;
  for (; pushed_bytes < 12 * ring_bytes; ++count) {
    const std::size_t bytes = random() % (count % 3 == 0 ? ring_bytes / 2 - 256 : std::size_t{3000});
    push_with(r.ring, log, count, bytes);
    if (count % 5 == 0) r.ring.push([] {});
    pushed_bytes += bytes;
  }
  r.ring.wait(r.ring.issued());
  CHECK(allocations == before);
  REQUIRE(log.size() == static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) CHECK(log[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("bytes beside a command that are more than half the ring go to the heap") {
  running_ring r;
  std::vector<int> log;
  push_with(r.ring, log, 1, ring_bytes);
  push_with(r.ring, log, 2, 0);
  r.ring.wait(r.ring.issued());
  r.ring.push([] { throw std::runtime_error("failed"); });
  push_with(r.ring, log, 3, ring_bytes);
  push_with(r.ring, log, 4, 100);
  CHECK_THROWS_AS(r.ring.wait(r.ring.issued()), pl::error);
  CHECK(log == std::vector<int>{1, 2, -3, -4});
}

TEST_CASE("a command that cannot be made is not issued") {
  running_ring r;
  std::vector<int> log;
  push_with(r.ring, log, 1, 100);
  CHECK_THROWS_AS(r.ring.push_with(100,
                                   [&](unsigned char* p) -> with_extra {
                                     if (p != nullptr) throw std::runtime_error("no command");
                                     return {&log, 0, p, 0};
                                   }),
                  std::runtime_error);
  CHECK(r.ring.issued() == 1);
  push_with(r.ring, log, 2, 100);
  r.ring.wait(r.ring.issued());
  CHECK(log == std::vector<int>{1, 2});
}

} // namespace
