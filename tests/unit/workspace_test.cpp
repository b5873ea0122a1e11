// SPDX-License-Identifier: Apache-2.0
//
// The workspace: phases that nest and share bytes, tags that flip while a phase is open, the high-water mark
// against the promise, and refusals that leave everything as it was.
#include <contract/archetype_backend.hpp>

#include <plateau/workspace.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::tag;

// A metered resource that records what was declared dead.
template <class Space> struct recording_memory : pl::metered<pl::ram_resource<Space>> {
  std::vector<std::pair<void*, std::size_t>> retired;
  void retire(void* p, std::size_t bytes) noexcept {
    if (bytes != 0) retired.emplace_back(p, bytes);
  }
};

// A backend that has memory, and no more.
struct memory_only : archetypes::basic_archetype_backend<archetypes::stream, archetypes::event,
                                                         recording_memory<pl::device_space>,
                                                         recording_memory<pl::host_space>> {
  pl::meter& meter() { return device().meter(); }
};

pl::working_set set_of(tag t, index_t device_bytes, index_t pinned_bytes = 0) {
  pl::working_set s(t);
  s.device<char>("device", device_bytes).pinned<char>("pinned", pinned_bytes);
  return s;
}

TEST_CASE("it reserves its slabs once, and gives them back") {
  memory_only m;
  {
    const pl::workspace space(m, pl::reservation{1000, 500});
    CHECK(space.device_bytes() == 1000);
    CHECK(space.pinned_bytes() == 500);
    CHECK(m.meter().current(tag::workspace) == 1000);
    CHECK(m.pinned().meter().current(tag::workspace) == 500);
  }
  CHECK(m.meter().current() == 0);
  CHECK(m.pinned().meter().current() == 0);

  m.meter().limit(999);
  CHECK_THROWS_AS(pl::workspace(m, pl::reservation{1000, 500}), pl::budget_exceeded);
  m.meter().limit(1000);
  m.pinned().meter().limit(499);
  CHECK_THROWS_AS(pl::workspace(m, pl::reservation{1000, 500}), pl::budget_exceeded);
  CHECK(m.meter().current() == 0); // the first slab is not left behind
}

TEST_CASE("a phase flips the tag of its bytes, and closing it flips them back") {
  memory_only m;
  pl::workspace space(m, pl::reservation{2048, 512});
  const std::uint64_t before = m.meter().allocations();
  {
    auto phase = space.open(set_of(tag::vocabulary, 1000, 100));
    CHECK(m.meter().current(tag::vocabulary) == 1024);
    CHECK(m.meter().current(tag::workspace) == 1024);
    CHECK(m.pinned().meter().current(tag::vocabulary) == 256);
    CHECK(m.meter().current() == 2048);
    phase.device<char>(5);
    CHECK(m.meter().current(tag::vocabulary) == 1024); // the promise is charged, used or not
  }
  CHECK(m.meter().current(tag::vocabulary) == 0);
  CHECK(m.meter().current(tag::workspace) == 2048);
  CHECK(m.meter().peak(tag::vocabulary).bytes == 1024);
  CHECK(m.meter().allocations() == before);
}

TEST_CASE("a workspace that is one operator's has its tag, while no phase is open too") {
  memory_only m;
  pl::workspace space(m, pl::reservation{2048, 512}, tag::checkpoint);
  CHECK(m.meter().current(tag::checkpoint) == 2048);
  CHECK(m.pinned().meter().current(tag::checkpoint) == 512);
  {
    auto own = space.open(set_of(tag::checkpoint, 1000));
    CHECK(m.meter().current(tag::checkpoint) == 2048);
    auto other = space.open(set_of(tag::dispatch, 512, 256));
    CHECK(m.meter().current(tag::checkpoint) == 2048 - 512);
    CHECK(m.pinned().meter().current(tag::dispatch) == 256);
  }
  CHECK(m.meter().current(tag::checkpoint) == 2048);
  CHECK(m.pinned().meter().current(tag::checkpoint) == 512);
  CHECK(m.meter().peak(tag::checkpoint).bytes == 2048);
  CHECK(m.meter().peak(tag::workspace).bytes == 0);
}

TEST_CASE("parts are aligned, disjoint and inside the promise") {
  memory_only m;
  const pl::working_set s = [] {
    pl::working_set each(tag::dispatch);
    each.device<float>("a", 10).device<double>("b", 100).device<char>("c", 1).pinned<int>("d", 3);
    return each;
  }();
  pl::workspace space(m, s);
  auto phase = space.open(s);
  const auto a = phase.device<float>(10);
  const auto b = phase.device<double>(100);
  const auto c = phase.device<char>(1);
  const auto d = phase.pinned<int>(3);
  static_assert(std::is_same_v<decltype(a), const pl::view<float, pl::device_space>>);
  static_assert(std::is_same_v<decltype(d), const pl::view<int, pl::host_space>>);
  for (const void* p : {static_cast<const void*>(a.data()), static_cast<const void*>(b.data()),
                        static_cast<const void*>(c.data()), static_cast<const void*>(d.data())})
    CHECK(reinterpret_cast<std::uintptr_t>(p) % pl::part_alignment == 0);
  CHECK(reinterpret_cast<char*>(b.data()) - reinterpret_cast<char*>(a.data()) == 256);
  CHECK(c.data() - reinterpret_cast<char*>(b.data()) == 1024);
  std::memset(a.data(), 1, a.bytes()); // all of it is real memory
  std::memset(b.data(), 2, b.bytes());
  std::memset(c.data(), 3, c.bytes());
  std::memset(d.data(), 4, d.bytes());
  CHECK(phase.device_high_water() == s.device_bytes());
  CHECK(phase.pinned_high_water() == s.pinned_bytes());
  CHECK_THROWS_AS(phase.device<char>(1), pl::config_error); // the promise is used up
  CHECK_THROWS_AS(phase.pinned<char>(1), pl::config_error);
}

TEST_CASE("taking more than the promise is an error that names the phase, and takes nothing") {
  memory_only m;
  pl::workspace space(m, pl::reservation{1 << 20, 0}); // there would be room
  auto phase = space.open(set_of(tag::dispatch, 512));
  phase.device<char>(256);
  CHECK_THROWS_WITH_AS(phase.device<double>(33), doctest::Contains("dispatch"), pl::config_error);
  CHECK_THROWS_WITH_AS(phase.device<double>(33), doctest::Contains("256 of the 512"), pl::config_error);
  CHECK_THROWS_AS(phase.device<char>(-1), pl::config_error);
  CHECK_THROWS_AS(phase.device<double>(std::numeric_limits<index_t>::max()), pl::config_error);
  CHECK_THROWS_AS(phase.device<double>(index_t{1} << 61), pl::config_error); // 2^64 bytes
  CHECK_THROWS_AS(phase.pinned<char>(1), pl::config_error);
  CHECK(phase.device_high_water() == 256);
  CHECK(phase.device<double>(32).size() == 32); // what is left is still there
}

TEST_CASE("D3: nothing may be taken from a full phase, and comes as null") {
  memory_only m;
  pl::workspace space(m, pl::reservation{0, 0});
  auto phase = space.open(pl::working_set(tag::other));
  CHECK(phase.device<float>(0).data() == nullptr);
  CHECK(phase.pinned<float>(0).size() == 0);
  CHECK(phase.device_high_water() == 0);
}

TEST_CASE("the high-water mark is the most that was taken; rewind starts from the bottom again") {
  memory_only m;
  pl::workspace space(m, pl::reservation{4096, 4096});
  auto phase = space.open(set_of(tag::activations, 2048, 1024));
  const auto first = phase.device<char>(1000);
  phase.device<char>(300);
  CHECK(phase.device_high_water() == 1536);
  phase.rewind();
  const auto again = phase.device<char>(500);
  CHECK(again.data() == first.data());
  CHECK(phase.device_high_water() == 1536);
  phase.rewind();
  phase.device<char>(2048);
  CHECK(phase.device_high_water() == 2048);
  CHECK(phase.pinned_high_water() == 0);
}

TEST_CASE("phases that alternate share the same bytes; their working sets overlay") {
  memory_only m;
  const pl::working_set forward = set_of(tag::dispatch, 3000), loss = set_of(tag::vocabulary, 5000);
  pl::workspace space(m, pl::overlay(forward, loss));
  CHECK(space.device_bytes() == 5120);
  char* bottom = nullptr;
  for (int layer = 0; layer < 4; ++layer) {
    auto phase = space.open(forward);
    const auto slot = phase.device<char>(3000);
    if (layer == 0) bottom = slot.data();
    CHECK(slot.data() == bottom);
  }
  auto phase = space.open(loss);
  CHECK(phase.device<char>(5000).data() == bottom);
  CHECK(m.meter().peak().bytes == 5120);
}

TEST_CASE("phases nest like a stack") {
  memory_only m;
  const pl::working_set outer_set = set_of(tag::dispatch, 1024, 256),
                        inner_set = set_of(tag::activations, 512, 512);
  pl::workspace space(m, pl::together(outer_set, inner_set));
  auto outer = space.open(outer_set);
  const auto a = outer.device<char>(256);
  char* b = nullptr;
  {
    auto inner = space.open(inner_set);
    b = inner.device<char>(512).data();
    CHECK(b - a.data() == 1024);                             // beyond all that the outer one was promised
    CHECK(outer.device<char>(512).data() - a.data() == 256); // which it may still take
    CHECK(m.meter().current(tag::dispatch) == 1024);
    CHECK(m.meter().current(tag::activations) == 512);
    CHECK(m.meter().current(tag::workspace) == 0);
    CHECK_THROWS_AS(space.open(set_of(tag::other, 1)), pl::config_error); // all is given out
  }
  CHECK(m.meter().current(tag::workspace) == 512);
  auto next = space.open(inner_set);
  CHECK(next.device<char>(1).data() == b);
}

TEST_CASE("a phase that does not fit is refused, and leaves the workspace as it was") {
  memory_only m;
  pl::workspace space(m, pl::reservation{1024, 256});
  CHECK_THROWS_WITH_AS(space.open(set_of(tag::vocabulary, 1025)),
                       doctest::Contains("needs 1280 device and 0 pinned bytes, but 1024 and 256 are free"),
                       pl::config_error);
  CHECK_THROWS_AS(space.open(set_of(tag::vocabulary, 1024, 257)), pl::config_error);
  CHECK(m.meter().current(tag::workspace) == 1024);
  CHECK(m.meter().peak(tag::vocabulary).bytes == 0);
  auto phase = space.open(set_of(tag::vocabulary, 1024, 256)); // all of it is still free
  CHECK(phase.device<char>(1024).size() == 1024);
}

TEST_CASE("closing a phase before one that was opened after it ends the workspace") {
  memory_only m;
  const pl::working_set outer_set = set_of(tag::dispatch, 512),
                        inner_set = set_of(tag::activations, 256, 256);
  pl::workspace space(m, pl::together(outer_set, inner_set));
  using phase = pl::workspace<memory_only>::phase;
  const auto refused = [&] {
    CHECK_THROWS_WITH_AS(space.open(inner_set),
                         doctest::Contains("dispatch was closed before one that was opened after it"),
                         pl::config_error);
  };
  {
    auto outer = std::unique_ptr<phase>(new phase(space.open(outer_set)));
    const phase inner = space.open(inner_set);
    outer.reset();
    refused(); // or its bytes would be those of `inner`
  }
  refused(); // though none is open any more
  CHECK(m.meter().current(tag::workspace) == space.device_bytes());
}

TEST_CASE("an exception inside a phase closes it") {
  memory_only m;
  pl::workspace space(m, pl::reservation{1024, 0});
  try {
    auto phase = space.open(set_of(tag::dispatch, 1024));
    throw 1;
  } catch (int) {
  }
  CHECK(m.meter().current(tag::dispatch) == 0);
  CHECK_NOTHROW(space.open(set_of(tag::dispatch, 1024)));
}

TEST_CASE("closing a phase declares its contents dead") {
  memory_only m;
  pl::workspace space(m, pl::reservation{2048, 512});
  void* at = nullptr;
  {
    auto outer = space.open(set_of(tag::dispatch, 512));
    auto inner = space.open(set_of(tag::dispatch, 1024, 512));
    at = inner.device<char>(1).data();
  }
  REQUIRE(m.device().retired.size() == 2);
  CHECK(m.device().retired[0] == std::pair<void*, std::size_t>(at, 1024)); // the inner one first
  CHECK(m.device().retired[1].second == 512);
  REQUIRE(m.pinned().retired.size() == 1);
  CHECK(m.pinned().retired[0].second == 512);
}

} // namespace
