// SPDX-License-Identifier: Apache-2.0
//
// Addresses of a dry run: none is given out twice, none exists on a machine, and none is next to another's.
#include <plateau/dry_run/virtual_memory.hpp>

#include <plateau/resource.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using pl::tag;

struct range {
  std::uintptr_t at;
  std::size_t bytes;
};
struct log final : dry::memory_listener {
  void allocated(std::uintptr_t at, std::size_t bytes, const char* space, tag t) override {
    given.push_back({at, bytes});
    spaces.push_back(space);
    tags.push_back(t);
  }
  void freed(std::uintptr_t at) noexcept override { back.push_back(at); }
  void retired(std::uintptr_t at, std::size_t bytes) noexcept override { dead.push_back({at, bytes}); }

  std::vector<range> given, dead;
  std::vector<std::uintptr_t> back;
  std::vector<const char*> spaces;
  std::vector<tag> tags;
};
std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
// x86-64 and AArch64 have addresses whose upper bits are all like bit 47.
bool canonical(std::uintptr_t a) {
  const auto upper = a >> 47;
  return upper == 0 || upper == (std::uintptr_t{1} << 17) - 1;
}

static_assert(pl::memory_resource<dry::virtual_memory<pl::device_space>> &&
              pl::metered_resource<pl::metered<dry::virtual_memory<pl::host_space>>>);

template <class Space> void check_space() {
  log seen;
  dry::virtual_memory<Space> memory(seen);
  std::vector<void*> live;
  std::uint32_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525u + 1013904223u;
    const std::size_t bytes = 1 + (random >> 8) % 100'000, alignment = std::size_t{1} << (random >> 4) % 13;
    void* p = memory.allocate(bytes, alignment, tag::gradients);
    CHECK(address(p) % alignment == 0);
    CHECK(address(p) == seen.given.back().at);
    CHECK(bytes == seen.given.back().bytes);
    CHECK(std::string(seen.spaces.back()) == Space::name);
    CHECK(seen.tags.back() == tag::gradients);
    live.push_back(p);
    if (random % 3 == 0) { // what is given back is not given out again
      memory.deallocate(live.back(), bytes, alignment, tag::gradients);
      CHECK(seen.back.back() == address(live.back()));
    }
  }
  REQUIRE(seen.given.size() == 2000);
  for (std::size_t i = 0; i < seen.given.size(); ++i) {
    const range& r = seen.given[i];
    REQUIRE_FALSE(canonical(r.at));
    REQUIRE_FALSE(canonical(r.at + r.bytes - 1));
    if (i != 0) REQUIRE(seen.given[i - 1].at + seen.given[i - 1].bytes + 4096 <= r.at); // a gap behind each
  }
}

} // namespace

TEST_CASE("device addresses are new, impossible and apart") { check_space<pl::device_space>(); }
TEST_CASE("host addresses are new, impossible and apart") { check_space<pl::host_space>(); }

TEST_CASE("the two spaces of a rank do not meet, and two memories of one space share no address") {
  log seen;
  dry::virtual_memory<pl::device_space> device(seen), again(seen);
  dry::virtual_memory<pl::host_space> host(seen);
  const auto half = std::size_t{1} << 55;
  const auto a = address(device.allocate(half, 256, tag::other));
  const auto b = address(again.allocate(100, 256, tag::other));
  const auto c = address(host.allocate(half, 256, tag::other));
  CHECK(b >= a + half);
  CHECK((c + half <= a || c >= b + 100));
  CHECK_FALSE(canonical(a + half - 1));
  CHECK_FALSE(canonical(c + half - 1));
}

TEST_CASE("nothing is asked, nothing is told") {
  log seen;
  dry::virtual_memory<pl::device_space> memory(seen);
  CHECK(memory.allocate(0, 256, tag::other) == nullptr);
  memory.deallocate(nullptr, 0, 256, tag::other);
  memory.retire(nullptr, 0);
  CHECK(seen.given.empty());
  CHECK(seen.back.empty());
  CHECK(seen.dead.empty());
  void* p = memory.allocate(100, 1, tag::other);
  memory.retire(static_cast<char*>(p) + 10, 20);
  REQUIRE(seen.dead.size() == 1);
  CHECK(seen.dead[0].at == address(p) + 10);
  CHECK(seen.dead[0].bytes == 20);
}

// D9, V5, O3: sizes beyond 32 bits are sizes like others.
TEST_CASE("D9, V5, O3: a terabyte is one allocation; what no machine could have is refused") {
  log seen;
  pl::metered<dry::virtual_memory<pl::device_space>> memory("rank 1",
                                                            dry::virtual_memory<pl::device_space>(seen));
  const auto tera = std::size_t{1} << 40;
  void* p = memory.allocate(tera, 256, tag::parameters);
  CHECK(memory.meter().current(tag::parameters) == tera);
  for (const std::size_t bytes : {std::size_t{1} << 56, std::size_t{1} << 60, ~std::size_t{0}}) {
    std::string text;
    try {
      memory.allocate(bytes, 256, tag::other);
    } catch (const pl::backend_error& e) {
      text = e.what();
    } catch (const pl::budget_exceeded& e) { // the sum does not even fit the meter
      text = e.what();
    }
    CHECK(text.find(std::to_string(bytes)) != std::string::npos);
  }
  CHECK(memory.meter().current() == tera);
  CHECK(seen.given.size() == 1);
  void* q = memory.allocate(tera, 256, tag::other); // the refused ones took no addresses with them
  CHECK(address(q) - address(p) < 2 * tera);
}
