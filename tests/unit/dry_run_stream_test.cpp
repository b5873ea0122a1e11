// SPDX-License-Identifier: Apache-2.0
//
// A stream of a dry run is its number at the recorder; it may move, and its end is a wait of the host.
#include <plateau/dry_run/stream.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {
namespace dry = plateau::dry;
using dry::action;

std::size_t count(const dry::recorder& r, action what) {
  std::size_t n = 0;
  for (const dry::instruction& i : r.program().instructions) n += i.what == what ? 1u : 0u;
  return n;
}

static_assert(!std::is_copy_constructible_v<dry::stream> && !std::is_move_assignable_v<dry::stream>);
static_assert(std::is_nothrow_move_constructible_v<dry::stream>);
} // namespace

TEST_CASE("a stream opens, moves, and closes once") {
  dry::recorder r;
  {
    dry::stream a(r, "a");
    CHECK(a.number() == 1);
    CHECK(a.name() == "a");
    CHECK(&a.recorded_by() == &r);
    r.issue(a.number(), {}, "work", {}, {});
    dry::stream moved = std::move(a);
    CHECK(moved.number() == 1);
    CHECK(moved.name() == "a");
    CHECK(count(r, action::close_stream) == 0);
    std::vector<dry::stream> many;
    for (int i = 0; i < 10; ++i) many.emplace_back(r, "one of many"); // they move as the vector grows
    CHECK(count(r, action::open_stream) == 11);
    CHECK(many.back().number() == 11);
  }
  CHECK(count(r, action::close_stream) == 11);
  const dry::instruction& end = r.program().instructions.back(); // `a`, which was made first
  CHECK(end.stream == 1);
  CHECK(end.bytes == 1);
}

TEST_CASE("O14: streams made anew each step take no more numbers than those of one step") {
  dry::recorder r;
  for (int step = 0; step < 1000; ++step) {
    const dry::stream a(r, "in"), b(r, "out");
    CHECK(a.number() <= 2);
    CHECK(b.number() <= 2);
    CHECK(a.number() != b.number());
    CHECK(a.name() == "in");
  }
}

TEST_CASE("an event of a stream that has gone is done") {
  dry::recorder r;
  dry::event late;
  {
    dry::stream brief(r, "brief");
    r.issue(brief.number(), {}, "work", {}, {});
    late = r.record(brief.number());
  }
  dry::stream other(r, "other");
  r.wait(other.number(), late, {});
  r.wait(0, late, {});
  CHECK(r.program().instructions.back().other == 1);
  CHECK(r.program().instructions.back().bytes == 1);
}
