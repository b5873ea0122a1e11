// SPDX-License-Identifier: Apache-2.0
//
// The recorder: what threads and meters write is all there, in order, and several ranks become one trace.
#include <plateau/trace/recorder.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
using pl::memory_kind;
using pl::tag;
using pl::trace_recorder;

pl::trace_event event(const char* name, std::uint32_t stream, double begin, double end) {
  return {name, {}, -1, stream, pl::trace_kind::compute, begin, end, 0};
}

} // namespace

TEST_CASE("meters write what each tag holds, and phases once though both meters announce them") {
  trace_recorder r(3);
  pl::meter device("device"), pinned("pinned host");
  device.charge(tag::parameters, 100);
  device.observe(r.device_observer());
  pinned.observe(r.pinned_observer());
  for (const char* phase : {"forward", "backward", "forward"}) {
    device.phase(phase);
    pinned.phase(phase);
  }
  device.charge(tag::workspace, 50);
  device.retag(tag::workspace, tag::dispatch, 20);
  pinned.charge(tag::checkpoint, 7);
  pinned.release(tag::checkpoint, 7);
  device.observe(nullptr);
  pinned.observe(nullptr);
  device.charge(tag::other, 1);

  const pl::trace t = trace_recorder::merge("title", {&r});
  CHECK(t.title == "title");
  REQUIRE(t.memory.size() == 6);
  const std::size_t bytes[] = {100, 50, 30, 20, 7, 0};
  const tag tags[] = {tag::parameters, tag::workspace,  tag::workspace,
                      tag::dispatch,   tag::checkpoint, tag::checkpoint};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(t.memory[i].rank == 3);
    CHECK(t.memory[i].bytes == bytes[i]);
    CHECK((t.memory[i].tag == tags[i]));
    CHECK((t.memory[i].pool == (i < 4 ? memory_kind::device : memory_kind::pinned_host)));
    if (i != 0) CHECK(t.memory[i].at >= t.memory[i - 1].at);
  }
  REQUIRE(t.phases.size() == 3);
  CHECK(t.phases[1].name == std::string("backward"));
  CHECK(t.phases[2].name == std::string("forward"));
  CHECK(r.lost() == 0);
}

TEST_CASE("threads record at once: nothing is lost, and events are in order") {
  trace_recorder r(0);
  std::vector<std::uint32_t> numbers;
  for (const char* name : {"a", "b", "c", "d"}) numbers.push_back(r.stream(name));
  std::vector<std::thread> threads;
  for (const std::uint32_t s : numbers)
    threads.emplace_back([&r, s] {
      for (int i = 0; i < 1000; ++i) {
        const double begin = r.now();
        r.memory(memory_kind::device, tag::other, static_cast<std::size_t>(i));
        r.event(event("e", s, begin, r.now()));
      }
    });
  for (std::thread& t : threads) t.join();
  const pl::trace t = trace_recorder::merge("", {&r});
  CHECK(t.streams == std::vector<std::string>{"host", "a", "b", "c", "d"});
  REQUIRE(t.events.size() == 4000);
  CHECK(t.memory.size() == 4000);
  int of_stream[5] = {};
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    ++of_stream[t.events[i].stream];
    CHECK(t.events[i].end >= t.events[i].begin);
    if (i != 0) CHECK(t.events[i].begin >= t.events[i - 1].begin);
    if (i != 0) CHECK(t.memory[i].at >= t.memory[i - 1].at);
  }
  for (int s = 1; s < 5; ++s) CHECK(of_stream[s] == 1000);
}

TEST_CASE("ranks are merged in order; streams of one name are one unless a rank has them at the same time") {
  const auto origin = trace_recorder::clock::now();
  trace_recorder r0(0, origin), r1(1, origin);
  const std::uint32_t main0 = r0.stream("main"), early = r0.stream("copy"), unused = r0.stream("unused"),
                      late = r0.stream("copy"), beside = r0.stream("copy");
  const std::uint32_t copy1 = r1.stream("copy"), main1 = r1.stream("main");
  CHECK(main0 == 1);
  CHECK(unused == 3);
  r0.event(event("second", main0, 2, 3));
  r0.event(event("first", main0, 1, 2));
  r0.event(event("early", early, 0, 1));
  r0.event(event("late", late, 1, 3)); // after the one before it
  r0.event(event("beside", beside, 2, 3));
  r0.event(event("waits", 0, 2.5, 3));
  r1.event(event("copy of 1", copy1, 0, 1));
  r1.event(event("main of 1", main1, 0.5, 1));
  r0.phase("p");
  r1.phase("q");
  const pl::trace t = trace_recorder::merge("", {&r1, &r0});
  CHECK(t.streams == std::vector<std::string>{"host", "main", "copy", "copy"});
  const struct {
    const char* name;
    int rank;
    std::uint32_t stream;
  } expected[] = {{"early", 0, 2},  {"first", 0, 1}, {"late", 0, 2},      {"second", 0, 1},
                  {"beside", 0, 3}, {"waits", 0, 0}, {"copy of 1", 1, 2}, {"main of 1", 1, 1}};
  REQUIRE(t.events.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(t.events[i].name == std::string(expected[i].name));
    CHECK(t.events[i].rank == expected[i].rank);
    CHECK(t.events[i].stream == expected[i].stream);
  }
  REQUIRE(t.phases.size() == 2);
  CHECK(t.phases[0].rank == 0);
}

TEST_CASE("recorders that do not belong together are refused") {
  const auto origin = trace_recorder::clock::now();
  trace_recorder a(0, origin), b(0, origin), c(1, origin + std::chrono::seconds(1));
  CHECK_THROWS_WITH_AS(trace_recorder::merge("", {&a, &b}),
                       "plateau: trace_recorder::merge: the recorders of ranks 0 and 0 are of the same rank",
                       pl::config_error);
  CHECK_THROWS_AS(trace_recorder::merge("", {&a, &c}), pl::config_error);
  CHECK(trace_recorder::merge("", {}).streams.size() == 1);
}
