// SPDX-License-Identifier: Apache-2.0
//
// Resources and buffers: alignment, metering around an upstream that may fail, sizes that cannot exist, and
// one owner for every allocation.
#include <plateau/resource.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::tag;

// Counts its calls and checks that what comes back is what was given; fails on request.
struct upstream {
  using space = pl::device_space;
  struct state {
    int allocations = 0, live = 0;
    std::size_t live_bytes = 0;
    bool fails = false, throws_bad_alloc = false;
  };
  std::shared_ptr<state> s = std::make_shared<state>();

  void* allocate(std::size_t bytes, std::size_t alignment, tag) {
    ++s->allocations;
    if (s->throws_bad_alloc) throw std::bad_alloc();
    if (s->fails) throw pl::backend_error("no memory on this device");
    ++s->live;
    s->live_bytes += bytes;
    return ::operator new(bytes, std::align_val_t(alignment));
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment, tag) noexcept {
    --s->live;
    s->live_bytes -= bytes;
    ::operator delete(p, std::align_val_t(alignment));
  }
};
using resource = pl::metered<upstream>;

TEST_CASE("the concept wants a space, a tag with every request, and a deallocation that cannot throw") {
  struct no_space {
    void* allocate(std::size_t, std::size_t, tag) { return nullptr; }
    void deallocate(void*, std::size_t, std::size_t, tag) noexcept {}
  };
  struct may_throw {
    using space = pl::host_space;
    void* allocate(std::size_t, std::size_t, tag) { return nullptr; }
    void deallocate(void*, std::size_t, std::size_t, tag) {}
  };
  struct untagged {
    using space = pl::host_space;
    void* allocate(std::size_t, std::size_t) { return nullptr; }
    void deallocate(void*, std::size_t, std::size_t) noexcept {}
  };
  static_assert(pl::memory_resource<upstream> && pl::memory_resource<resource>);
  static_assert(!pl::memory_resource<no_space> && !pl::memory_resource<may_throw> &&
                !pl::memory_resource<untagged>);
}

TEST_CASE("RAM comes aligned, nothing comes as null") {
  pl::ram_resource<pl::host_space> ram;
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, std::size_t{256}, std::size_t{4096}}) {
    void* p = ram.allocate(100, alignment, tag::other);
    CHECK(reinterpret_cast<std::uintptr_t>(p) % alignment == 0);
    ram.deallocate(p, 100, alignment, tag::other);
  }
  CHECK(ram.allocate(0, 256, tag::other) == nullptr);
  ram.deallocate(nullptr, 0, 256, tag::other);
}

TEST_CASE("a buffer is charged while it lives, under its tag") {
  resource r("rank 1");
  {
    pl::buffer<float, resource> b(r, 100, tag::gradients);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % pl::part_alignment == 0);
    CHECK(b.size() == 100);
    CHECK(b.bytes() == 400);
    CHECK(r.meter().current(tag::gradients) == 400);
    CHECK(b.all().size() == 100);
    CHECK(b.first(30).size() == 30);
    CHECK((b.matrix(20, 5).rows == 20 && b.matrix(20, 5).ld == 5));
    CHECK_THROWS_AS(b.first(101), pl::config_error);
    CHECK_THROWS_AS(b.matrix(21, 5), pl::config_error);
    static_assert(std::is_same_v<decltype(b.all()), pl::view<float, pl::device_space>>);
  }
  CHECK(r.meter().current() == 0);
  CHECK(r.meter().peak(tag::gradients).bytes == 400);
}

TEST_CASE("an empty buffer needs no memory") {
  pl::metered<pl::ram_resource<pl::device_space>> r;
  const pl::buffer<float, pl::metered<pl::ram_resource<pl::device_space>>> b(r, 0, tag::other), none;
  CHECK(b.data() == nullptr);
  CHECK(b.all().size() == 0);
  CHECK(none.size() == 0);
  CHECK(r.meter().current() == 0);
}

TEST_CASE("sizes that cannot exist are refused before anything is asked") {
  upstream up;
  resource r("", up);
  using buffer = pl::buffer<double, resource>;
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK_THROWS_AS(buffer(r, -1, tag::other), pl::config_error);
  CHECK_THROWS_AS(buffer(r, most, tag::other), pl::config_error);
  CHECK_THROWS_AS(buffer(r, most / 8 + 1, tag::other), pl::config_error);
  CHECK(up.s->allocations == 0);
  r.meter().limit(1000);
  CHECK_THROWS_AS(buffer(r, most / 8, tag::other), pl::budget_exceeded); // its bytes fit into 64 bits
  CHECK(up.s->allocations == 0);
}

TEST_CASE("what the limit refuses never reaches the upstream") {
  upstream up;
  resource r("rank 0", up);
  r.meter().limit(1024);
  const pl::buffer<unsigned char, resource> kept(r, 1000, tag::parameters);
  CHECK_THROWS_WITH_AS((pl::buffer<unsigned char, resource>(r, 25, tag::dispatch)),
                       doctest::Contains("parameters 1000"), pl::budget_exceeded);
  CHECK(up.s->allocations == 1);
  CHECK(r.meter().current() == 1000);
}

TEST_CASE("a failing upstream leaves no trace in the meter, in no peak either") {
  upstream up;
  resource r("", up);
  const pl::buffer<unsigned char, resource> kept(r, 10, tag::parameters);
  up.s->fails = true;
  CHECK_THROWS_AS((pl::buffer<unsigned char, resource>(r, 1'000'000, tag::dispatch)), pl::backend_error);
  up.s->throws_bad_alloc = true;
  CHECK_THROWS_AS((pl::buffer<unsigned char, resource>(r, 1'000'000, tag::dispatch)), std::bad_alloc);
  CHECK(r.meter().current() == 10);
  CHECK(r.meter().current(tag::dispatch) == 0);
  CHECK(r.meter().peak().bytes == 10);
  CHECK(r.meter().peak(tag::dispatch).bytes == 0);
  CHECK(r.meter().allocations() == 1);
  r.meter().limit(20);
  up.s->fails = up.s->throws_bad_alloc = false;
  const pl::buffer<unsigned char, resource> rest(r, 10, tag::dispatch); // nothing stayed reserved
  CHECK(r.meter().current() == 20);
}

TEST_CASE("moving a buffer moves its one allocation") {
  upstream up;
  resource r("", up), other("", up);
  using buffer = pl::buffer<int, resource>;
  static_assert(std::is_nothrow_move_constructible_v<buffer> && std::is_nothrow_move_assignable_v<buffer>);
  static_assert(!std::is_copy_constructible_v<buffer> && !std::is_copy_assignable_v<buffer>);
  {
    buffer a(r, 10, tag::gradients);
    int* const p = a.data();
    buffer b(std::move(a));
    CHECK(b.data() == p);
    CHECK(a.data() == nullptr); // NOLINT: what is left behind is empty
    CHECK(a.size() == 0);
    CHECK(up.s->live == 1);

    buffer c(other, 20, tag::optimizer);
    c = std::move(b); // frees its own first, each with its own resource and tag
    CHECK(c.data() == p);
    CHECK(c.size() == 10);
    CHECK(b.data() == nullptr);
    CHECK(up.s->live == 1);
    CHECK(other.meter().current() == 0);
    CHECK(r.meter().current(tag::gradients) == 40);

    c = buffer();
    CHECK(up.s->live == 0);
    CHECK(r.meter().current() == 0);
    a = buffer(r, 5, tag::other); // what was moved from may be used again
    CHECK(a.size() == 5);
    buffer& self = a;
    a = std::move(self); // leaves some valid state, and frees nothing twice
  }
  CHECK(up.s->live == 0);
  CHECK(up.s->live_bytes == 0);
  CHECK(r.meter().current() == 0);
}

TEST_CASE("parts are rounded up to their alignment") {
  static_assert(pl::aligned_bytes(0) == 0 && pl::aligned_bytes(1) == 256 && pl::aligned_bytes(256) == 256 &&
                pl::aligned_bytes(257) == 512);
  static_assert(pl::aligned_bytes((std::size_t{1} << 40) + 1) == (std::size_t{1} << 40) + 256);
  CHECK(pl::part_alignment == 256);
}

TEST_CASE("a buffer is a tensor in its resource's space; a temporary one gives no view") {
  using memory = pl::metered<pl::ram_resource<pl::device_space>>;
  memory r;
  const pl::buffer<float, memory> b(r, 6, tag::other);
  static_assert(pl::tensor<pl::buffer<float, memory>>);
  const auto v = pl::as_view(b);
  static_assert(std::is_same_v<decltype(v), const pl::view<float, pl::device_space>>);
  CHECK((v.p == b.data() && v.n == 6));
  CHECK(pl::as_tile(b).cols == 6);
  const auto gives_view = []<class B>(B&& x) {
    return requires { pl::as_view(static_cast<B&&>(x)); };
  };
  CHECK(gives_view(b));
  CHECK_FALSE(gives_view(pl::buffer<float, memory>()));
}

} // namespace
