// SPDX-License-Identifier: Apache-2.0
//
// The clock of waits: in stream order, from zero with each call, and gone before its last task has run.
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/stall_clock.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

namespace pl = plateau;
using pl::detail::stall_clock;
using stream_type = pl::host_backend::stream;

namespace {

// Holds its stream until it may go on.
struct hold {
  std::atomic<bool>* open;
  void operator()() const {
    while (!*open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

} // namespace

TEST_CASE("what a stream waits for is counted, from zero with each restart") {
  pl::host_backend backend;
  auto waiting = backend.make_stream("waiting"), late = backend.make_stream("late");
  stall_clock clock(true);
  std::atomic<bool> open{false};
  backend.host_task(late, hold{&open});
  clock.restart(backend, waiting);
  clock.begin(backend, waiting);
  backend.wait(waiting, backend.record(late));
  clock.end(backend, waiting);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  open = true;
  backend.wait(backend.record(waiting));
  CHECK(clock.seconds() > 0);
  clock.restart(backend, waiting);
  backend.wait(backend.record(waiting));
  CHECK(clock.seconds() == 0);
}
TEST_CASE("two streams that wait at the same time count both") {
  pl::host_backend backend;
  auto one = backend.make_stream("one"), two = backend.make_stream("two"), late = backend.make_stream("late");
  stall_clock clock(true);
  std::atomic<bool> open{false}, second_waits{false};
  backend.host_task(late, hold{&open});
  const auto wait = [&](stream_type& s) {
    clock.begin(backend, s);
    if (&s == &two) backend.host_task(s, [&second_waits] { second_waits = true; });
    backend.wait(s, backend.record(late));
    clock.end(backend, s);
  };
  wait(one);
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  wait(two); // the first goes on
  while (!second_waits) std::this_thread::yield();
  CHECK(clock.seconds() >= 0.03); // until now
  open = true;
  backend.wait(backend.record(one));
  backend.wait(backend.record(two));
  CHECK(clock.seconds() >= 0.03); // the second has not made it forget when the first began
}
TEST_CASE("a clock that is off counts nothing") {
  pl::host_backend backend;
  auto s = backend.make_stream("main");
  stall_clock clock(false);
  clock.restart(backend, s);
  clock.begin(backend, s);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  clock.end(backend, s);
  backend.wait(backend.record(s));
  CHECK(clock.seconds() == 0);
}
TEST_CASE("tasks outlive the clock") {
  pl::host_backend backend;
  auto s = backend.make_stream("main");
  std::atomic<bool> open{false};
  backend.host_task(s, hold{&open});
  auto clock = std::make_unique<stall_clock>(true);
  clock->begin(backend, s);
  clock->end(backend, s);
  clock.reset();
  open = true;
  backend.wait(backend.record(s));
}
