// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/order_check.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace dry = plateau::dry;
using dry::access_range;
using dry::finding_kind;
using dry::operation_ref;
using dry::touch;
using plateau::index_t;

namespace {
constexpr std::uintptr_t a = 0x4d00000000000000, b = a + 0x10000, slot = a + 0x20000;

access_range bytes(std::uintptr_t at, std::size_t width, touch mode) { return {at, width, 1, 0, 1, 0, mode}; }
access_range columns(std::uintptr_t at, std::size_t width, index_t rows, std::size_t pitch, touch mode) {
  return {at, width, rows, pitch, 1, 0, mode};
}

// Three allocations of 4096 bytes and three streams; operations are numbered from 0.
struct rig {
  explicit rig(dry::keep_findings keep = dry::keep_findings::all) : check(keep) {
    for (const auto p : {a, b, slot}) check.allocated(p, 4096, "device", plateau::tag::optimizer);
    for (int s = 1; s <= 3; ++s) check.opened(s);
  }
  void operation(int stream, std::vector<access_range> accesses, std::uint32_t name = 0) {
    check.operation({number++, name, static_cast<std::uint16_t>(stream)}, accesses);
  }
  void fill(std::uintptr_t at) { operation(0, {bytes(at, 4096, touch::write)}); }
  void order(int before, int after) { check.wait(after, check.record(before)); }
  std::string said() const {
    const char* kinds[] = {"unordered", "early", "bounds", "unknown", "freed", "in flight"};
    std::string s;
    for (const auto& f : check.findings()) {
      if (!s.empty()) s += ", ";
      s += std::string(kinds[static_cast<std::size_t>(f.kind)]);
      if (f.kind != finding_kind::free_in_flight) s += " " + std::to_string(f.operation.number);
      if (f.earlier) s += " after " + std::to_string(f.earlier->number);
      s += " [" + std::to_string(f.first) + "," + std::to_string(f.last) + ")";
    }
    return s;
  }

  dry::order_check check;
  std::uint64_t number = 0;
};
} // namespace

TEST_CASE("O4: order check: a slot used again before its copy has ended") {
  for (const bool waits : {true, false}) {
    rig r;
    r.fill(a);
    r.operation(1, {bytes(a, 4096, touch::read), bytes(slot, 4096, touch::write)});
    r.order(1, 2);
    r.operation(2, {bytes(slot, 4096, touch::update)});
    if (waits) r.order(2, 1);
    r.operation(1, {bytes(a, 4096, touch::read), bytes(slot, 4096, touch::write)});
    CHECK(r.said() == (waits ? "" : "unordered 3 after 2 [0,4096)"));
  }
}

TEST_CASE("O5: order check: a wait for the wrong stream's event") {
  rig r;
  r.operation(1, {bytes(a, 4096, touch::write)});
  r.operation(3, {bytes(b, 4096, touch::write)});
  r.order(3, 2);
  r.operation(2, {bytes(b, 4096, touch::read)});
  CHECK(r.said().empty());
  r.operation(2, {bytes(a + 100, 50, touch::read)});
  CHECK(r.said() == "unordered 3 after 0 [100,150)");
  const auto& f = r.check.findings().front();
  CHECK(f.mode == touch::read);
  CHECK(f.earlier_mode == touch::write);
  CHECK(f.allocation == 0);
  CHECK(f.allocation_bytes == 4096);
  CHECK(f.purpose == plateau::tag::optimizer);
  CHECK(std::string(f.space) == "device");
}

TEST_CASE("F1: order check: a restore that does not wait for the park's event") {
  rig r;
  r.fill(a);
  r.operation(1, {bytes(a, 4096, touch::read), bytes(b, 4096, touch::write)}, 1);
  r.operation(2, {bytes(b, 4096, touch::read), bytes(slot, 4096, touch::write)}, 2);
  CHECK(r.said() == "unordered 2 after 1 [0,4096)");
}

TEST_CASE("F2: order check: memory freed while its copy is in flight") {
  rig r;
  r.fill(a);
  r.operation(1, {bytes(a, 10, touch::read)});
  r.operation(1, {bytes(a + 50, 10, touch::read)});
  r.operation(2, {bytes(a + 90, 10, touch::read)});
  r.check.wait(0, r.check.record(2));
  r.check.freed(a);
  CHECK(r.said() == "in flight after 2 [50,60)"); // the stream's last
  r.check.freed(a);
  CHECK(r.check.found() == 1);
}

TEST_CASE("F3: order check: memory touched after it was freed") {
  rig r;
  r.fill(a);
  r.check.freed(a);
  r.operation(1, {bytes(a + 8, 8, touch::read), bytes(b, 8, touch::write)});
  CHECK(r.said() == "freed 1 [8,16)");
}

TEST_CASE("order check: the host waits, for an event or for a stream that closes") {
  for (const bool closes : {true, false}) {
    rig r;
    r.operation(1, {bytes(a, 64, touch::write)});
    if (closes)
      r.check.closed(1);
    else
      r.check.wait(0, r.check.record(1));
    r.operation(0, {bytes(a, 64, touch::read)});
    r.operation(2, {bytes(a, 64, touch::write)}); // issued after the host has waited
    r.check.wait(0, r.check.record(2));
    r.check.freed(a);
    CHECK(r.said().empty());
  }
  rig r;
  r.operation(1, {bytes(a, 64, touch::write)});
  r.operation(0, {bytes(a, 64, touch::read)});
  CHECK(r.said() == "unordered 1 after 0 [0,64)");
}

TEST_CASE("order check: order passes through a third stream, but not backwards") {
  rig r;
  r.operation(1, {bytes(a, 64, touch::write)});
  const auto early = r.check.record(1);
  r.operation(1, {bytes(b, 64, touch::write)});
  r.check.wait(2, early);
  r.order(2, 3);
  r.operation(3, {bytes(a, 64, touch::read)});
  CHECK(r.said().empty());
  r.operation(3, {bytes(b, 64, touch::read)}); // was issued after the event
  CHECK(r.said() == "unordered 3 after 1 [0,64)");
}

TEST_CASE("order check: a default event is done and orders nothing") {
  rig r;
  r.operation(1, {bytes(a, 64, touch::write)});
  r.check.wait(2, {});
  r.check.wait(0, {});
  r.operation(2, {bytes(a, 64, touch::read)});
  CHECK(r.said() == "unordered 1 after 0 [0,64)");
}

TEST_CASE("O14: order check: a stream's number is used again") {
  rig r;
  r.operation(1, {bytes(a, 64, touch::write)});
  const auto old = r.check.record(1);
  r.check.closed(1);
  r.check.opened(1);
  r.operation(2, {bytes(a, 64, touch::read)}); // the host has waited for the old stream
  CHECK(r.said().empty());
  r.operation(1, {bytes(b, 64, touch::write)});
  r.check.wait(2, old);
  r.operation(2, {bytes(b, 64, touch::read)}); // the old event is not the new stream's
  CHECK(r.said() == "unordered 3 after 2 [0,64)");
}

TEST_CASE("order check: column blocks of one matrix") {
  rig r;
  r.operation(1, {columns(a, 16, 64, 64, touch::write)});
  r.operation(2, {columns(a + 16, 48, 64, 64, touch::write)});
  CHECK(r.said().empty());
  r.operation(3, {columns(a + 8, 16, 64, 64, touch::read)});
  CHECK(r.said() == "unordered 2 after 0 [8,4048), unordered 2 after 1 [16,4056)");
}

TEST_CASE("order check: column blocks together are the matrix, and one missing is found") {
  for (const bool all : {true, false}) {
    rig r;
    for (std::size_t i = 0; i < 4; ++i)
      if (all || i != 2) r.operation(1, {columns(a + 16 * i, 16, 64, 64, touch::write)});
    r.operation(1, {bytes(a, 4096, touch::read)});
    CHECK(r.said() == (all ? "" : "early 3 [32,48)"));
  }
}

TEST_CASE("order check: reads before a write") {
  rig r;
  r.operation(1, {bytes(a, 64, touch::write)});
  r.operation(1, {bytes(a + 32, 64, touch::read)});
  CHECK(r.said() == "early 1 [64,96)");
  r.operation(1, {bytes(b, 64, touch::update)});
  r.operation(1, {bytes(b, 64, touch::read)}); // once said is enough: the update wrote it
  CHECK(r.said() == "early 1 [64,96), early 2 [0,64)");
  r.operation(1, {bytes(b + 64, 64, touch::partial), bytes(slot, 64, touch::accumulate)});
  r.operation(1, {bytes(b, 128, touch::read)});
  CHECK(r.said() == "early 1 [64,96), early 2 [0,64), early 4 [0,64)");
}

TEST_CASE("order check: scratch holds nothing afterwards, and conflicts like a write") {
  rig r;
  r.fill(a);
  r.operation(1, {bytes(a, 64, touch::scratch)});
  r.operation(1, {bytes(a, 128, touch::read)});
  CHECK(r.said() == "early 2 [0,64)");
  r.operation(2, {bytes(a, 64, touch::scratch)});
  CHECK(r.said() == "early 2 [0,64), unordered 3 after 2 [0,64), unordered 3 after 1 [0,64)");
}

TEST_CASE("order check: retired contents are dead, but whoever touched them is not forgotten") {
  rig r;
  r.operation(1, {bytes(a, 4096, touch::write)});
  r.check.retired(a + 64, 64);
  r.operation(1, {bytes(a, 64, touch::read), bytes(a + 128, 64, touch::read)});
  CHECK(r.said().empty());
  r.operation(1, {bytes(a, 256, touch::read)});
  CHECK(r.said() == "early 2 [64,128)");
  r.operation(2, {bytes(a + 64, 64, touch::write)});
  CHECK(r.said() == "early 2 [64,128), unordered 3 after 2 [64,128), unordered 3 after 0 [64,128)");
}

TEST_CASE("order check: adopted memory is known, written, and ready in the order of its stream") {
  rig r;
  const std::uintptr_t mine = 0x7f0000001000;
  r.operation(2, {bytes(mine, 64, touch::read)});
  CHECK(r.said() == "unknown 0 [" + std::to_string(mine) + "," + std::to_string(mine + 64) + ")");
  r.check.adopted(mine, 256, 1);
  r.operation(1, {bytes(mine, 256, touch::read)});
  CHECK(r.check.found() == 1);
  r.operation(2, {bytes(mine, 64, touch::read)});
  CHECK(r.check.found() == 2);
  CHECK(r.check.findings().back().earlier->number == operation_ref::adoption);
  r.order(1, 2);
  r.operation(2, {bytes(mine, 64, touch::update)});
  CHECK(r.check.found() == 2);
  // More of it, which the old part belongs to.
  r.order(2, 3);
  r.check.adopted(mine - 128, 512, 3);
  r.operation(3, {bytes(mine - 128, 512, touch::read)});
  CHECK(r.check.found() == 2);
  r.operation(3, {bytes(mine - 128, 513, touch::read)});
  CHECK(r.check.found() == 3);
  CHECK(r.check.findings().back().kind == finding_kind::out_of_bounds);
  CHECK(r.check.findings().back().allocation_bytes == 512);
  // The caller writes it again behind stream 1, and nothing made that wait for stream 3.
  r.check.adopted(mine + 256, 16, 1);
  CHECK(r.check.findings().back().operation.number == operation_ref::adoption);
  CHECK(r.check.findings().back().earlier->stream == 3);
}

TEST_CASE("order check: memory of a resource that the caller has filled") {
  rig r;
  r.check.adopted(a, 64, 1);
  r.check.adopted(b, 64, 0);
  r.operation(1, {bytes(a, 64, touch::read)});
  r.operation(2, {bytes(b, 64, touch::read)});
  CHECK(r.said().empty());
}

TEST_CASE("order check: accesses past the end, in no memory at all, and of no bytes") {
  rig r;
  r.operation(1, {bytes(a + 4000, 97, touch::write), columns(b, 16, 65, 64, touch::write),
                  bytes(b, 0, touch::read), columns(0, 16, 0, 64, touch::read)});
  CHECK(r.said() == "bounds 0 [4000,4097), bounds 0 [0,4112)");
  r.operation(1, {bytes(a + 4096, 1, touch::write), bytes(16, 1, touch::write)});
  CHECK(r.check.found() == 4);
  CHECK(r.check.findings().back().kind == finding_kind::unknown_memory);
}

TEST_CASE("order check: touches of one operation do not conflict, sums of integers neither") {
  rig r;
  r.fill(a);
  r.operation(1, {bytes(a, 64, touch::read), bytes(a + 32, 64, touch::write), bytes(a, 96, touch::update)});
  r.order(1, 2);
  r.order(1, 3);
  r.operation(2, {bytes(a, 64, touch::accumulate)});
  r.operation(3, {bytes(a, 64, touch::accumulate)});
  CHECK(r.said().empty());
  r.operation(3, {bytes(a, 64, touch::read)});
  CHECK(r.said() == "unordered 4 after 2 [0,64)");
}

TEST_CASE("order check: findings of the same two names are kept once, all are counted") {
  rig r(dry::keep_findings::first_of_each);
  for (int i = 0; i < 1000; ++i) {
    r.operation(1, {bytes(a, 64, touch::write)}, 1);
    r.operation(2, {bytes(a, 64, touch::write)}, 2);
  }
  CHECK(r.check.found() == 1999);
  CHECK(r.check.findings().size() == 2);
  for (std::uint32_t name = 0; name < 1000; ++name) r.operation(1, {bytes(b, 1, touch::read)}, name);
  CHECK(r.check.found() == 2999);
  CHECK(r.check.findings().size() == 256);
}

TEST_CASE("order check: more streams than a clock holds without help") {
  rig r;
  for (int s = 4; s < 30; ++s) {
    r.check.opened(s);
    r.operation(s, {bytes(a + static_cast<std::uintptr_t>(s), 1, touch::write)});
    if (s != 17) r.order(s, 30);
  }
  r.operation(30, {bytes(a + 4, 26, touch::read)});
  CHECK(r.said() == "unordered 26 after 13 [17,18)");
}
