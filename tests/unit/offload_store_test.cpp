// SPDX-License-Identifier: Apache-2.0
//
// A store of parked tensors: random programs keep every value, on threads, in orders drawn from a seed, with
// every operation taken at its word, and without data, where each wait is missed when it is left out and
// whatever fails leaks nothing. What it takes; where tensors are; what it refuses, and in which words.
#include "support/counted_new.hpp"
#include "support/faulty_backend.hpp"
#include "support/offload_program.hpp"
#include "support/process_memory.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/offload/offload_store.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::offload_program;

namespace {

using dry = pl::dry_run<pl::host_backend>;
using host = pl::host_backend;
using matrix = pl::tile<float>;

// Of a place in a source: its file and line.
std::string last_part(const std::string& place) { return place.substr(place.rfind('/') + 1); }

template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// A store of `n` tensors of 4 x 8 floats.
struct small_store {
  static constexpr index_t bytes = 4 * 8 * 4;

  explicit small_store(index_t n, index_t budget = pl::offload_shape::no_limit, int restored = 2,
                       int flights = 1)
      : space(backend, set_of(n, budget, restored, flights)), stream(backend.make_stream("main")),
        store(backend, space, shape_of(n, budget, restored, flights)), end(backend, stream) {}
  static pl::offload_shape shape_of(index_t n, index_t budget, int restored, int flights) {
    auto s = pl::offload_shape::of_layers(n, bytes, budget);
    s.restored_at_once = restored;
    s.in_flight = flights;
    return s;
  }
  static pl::working_set set_of(index_t n, index_t budget, int restored, int flights) {
    return pl::offload_store<host>::working_set_of(shape_of(n, budget, restored, flights));
  }
  auto written(index_t t, float first) {
    auto h = store.open<matrix>(t);
    auto w = h.write(stream, 4, 8);
    backend.launch(stream, pl::elements{32}, support::count_up{first}, pl::out(pl::as_row(w.view())));
    w.close();
    return h;
  }
  template <class Handle> float first_of(Handle& h) {
    auto r = h.get(stream);
    return support::from_device(backend, stream, pl::as_row(r.view())).front();
  }

  host backend;
  pl::workspace<host> space;
  host::stream stream;
  pl::offload_store<host> store;
  pl::drain<host> end;
};

// A tensor comes back, is dropped unread, and is written anew in another slot.
void restore_for_nothing(dry& be) {
  const auto shape = pl::offload_shape::of_layers(3, 64);
  pl::workspace<dry> space(be, pl::offload_store<dry>::working_set_of(shape));
  auto stream = be.make_stream("main");
  pl::offload_store<dry> store(be, space, shape);
  const pl::drain<dry> end(be, stream);
  std::vector<pl::offload_handle<pl::view<float>, dry>> h(3);
  const auto write = [&](index_t t) {
    auto& handle = h[static_cast<std::size_t>(t)];
    handle = store.open<pl::view<float>>(t);
    auto w = handle.write(stream, 16);
    be.launch(stream, pl::elements{16}, support::count_up{1}, pl::out(w.view()));
  };
  for (const index_t t : {0, 1, 2}) write(t);
  h[2] = {};
  h[0].prefetch();
  h[1] = {};
  h[0] = {};
  write(0);
}

} // namespace

TEST_CASE("random programs read what they wrote") {
  int reads = 0, late = 0, restored = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    offload_program p;
    p.seed = seed;
    host be;
    const auto r = p.run(be);
    CHECK(r.read == r.expected);
    CHECK(be.device().meter().current() == 0);
    CHECK(r.statistics.most_on_device <= p.shape().restored_at_once);
    CHECK(be.counters().host_round_trips == 0);
    reads += r.reads;
    late += static_cast<int>(r.statistics.late);
    restored += static_cast<int>(r.statistics.restored);
  }
  CHECK(reads > 500);
  CHECK(restored > 150);
  CHECK(late < restored);
}
TEST_CASE("under any order of operations, and with every operation taken at its word") {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    offload_program p;
    p.seed = seed;
    pl::seeded_backend in_turns(seed + 100);
    const auto r = p.run(in_turns);
    CHECK(r.read == r.expected);
    if (seed > 5) continue;
    pl::audited_backend audited(seed + 200);
    const auto a = p.run(audited);
    CHECK(a.read == a.expected);
  }
}

TEST_CASE("no program has accesses that nothing orders, and every wait of the store is missed") {
  std::map<std::string, int> missed, spared; // by place
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    offload_program p;
    p.seed = seed;
    std::uint64_t waits = 0;
    {
      dry be;
      p.run(be);
      waits = be.recorder().waits();
      for (const auto& f : be.recorder().findings()) FAIL_CHECK(be.recorder().text_of(f));
    }
    for (std::uint64_t k = 0; k < waits; ++k) {
      pl::dry_options options;
      options.drop_wait = k;
      dry be("", options);
      p.run(be);
      REQUIRE(be.recorder().dropped().has_value());
      const std::string place = last_part(be.recorder().dropped()->text());
      if (place.find("offload_store.hpp") != std::string::npos)
        ++(be.recorder().found() > 0 ? missed : spared)[place];
    }
  }
  // A new tensor's copy out waits for the copy in of the one before, which nobody has read: no program above
  // has the luck to need that.
  for (std::uint64_t k = 0, waits = 1; k < waits; ++k) {
    pl::dry_options options;
    options.drop_wait = k;
    dry be("", options);
    restore_for_nothing(be);
    waits = be.recorder().waits();
    if (!be.recorder().dropped()) break; // the last round has dropped none
    const std::string place = last_part(be.recorder().dropped()->text());
    if (place.find("offload_store.hpp") != std::string::npos)
      ++(be.recorder().found() > 0 ? missed : spared)[place];
  }
  for (const auto& each : spared) {
    CAPTURE(each.first);
    CHECK(missed[each.first] > 0);
  }
  CHECK(missed.size() == 7); // every wait that is there
}

TEST_CASE("whichever operation fails, it is thrown, and nothing leaks") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    offload_program p;
    p.seed = seed;
    std::uint64_t operations = 0;
    {
      dry be;
      p.run(be);
      operations = be.recorder().operations();
    }
    REQUIRE(operations > 20);
    for (std::uint64_t k = 0; k < operations; ++k) {
      CAPTURE(seed);
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      dry be("", options);
      std::string text;
      try {
        p.run(be);
      } catch (const pl::backend_error& e) {
        text = e.what();
      }
      CHECK(has(text, ("operation " + std::to_string(k) + " fails").c_str()));
      CHECK(be.device().meter().current() == 0);
      CHECK(be.pinned().meter().current() == 0);
      for (const auto& f : be.recorder().findings()) FAIL_CHECK(be.recorder().text_of(f));
    }
  }
}

TEST_CASE("whatever fails in a stream or at the host, a tensor is as it was written, or there is an error") {
  offload_program p;
  p.seed = 3;
  support::faulty_backend whole;
  p.run(whole);
  const auto operations = static_cast<std::int64_t>(whole.plan().seen.size());
  int thrown = 0;
  for (const auto where : {support::fault_plan::place::host, support::fault_plan::place::stream})
    for (std::int64_t k = 0; k < operations; ++k) {
      CAPTURE(k);
      support::faulty_backend be;
      be.plan().at = k;
      be.plan().where = where;
      try {
        const auto r = p.run(be);
        CHECK(r.read == r.expected);
      } catch (const pl::error& e) {
        ++thrown;
        CHECK(has(e.what(), "injected fault"));
      }
      CHECK(be.device().meter().current() + be.pinned().meter().current() == 0);
    }
  CHECK(thrown > operations);
}

TEST_CASE("it takes its working set and no more, and touches all of it") {
  for (const index_t budget : {index_t{0}, index_t{3 * 256}, index_t{5 * 256}, pl::offload_shape::no_limit}) {
    small_store s(6, budget);
    const pl::working_set set = small_store::set_of(6, budget, 2, 1);
    const index_t parked = s.store.plan().parked;
    CHECK(parked == (budget == 0 ? 0 : budget == 3 * 256 ? 3 : budget == 5 * 256 ? 5 : 6));
    CHECK(set.device_bytes() == static_cast<std::size_t>(256 * (6 - parked + std::min<index_t>(2, parked))));
    CHECK(set.pinned_bytes() == static_cast<std::size_t>(256 * parked));
    CHECK(s.backend.device().meter().current(pl::tag::checkpoint) == set.device_bytes());
    CHECK(s.backend.pinned().meter().current(pl::tag::checkpoint) == set.pinned_bytes());
    CHECK(s.backend.device().meter().current() == set.device_bytes());
    // A tensor is half of its part: as many bytes in turn are written as the promise has halves of parts.
    std::vector<pl::offload_handle<matrix, host>> all;
    std::vector<const float*> places;
    for (index_t t = 0; t < 6; ++t) {
      all.push_back(s.written(t, static_cast<float>(100 * t)));
      auto r = all.back().get(s.stream);
      places.push_back(r.view().p);
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    CHECK(places.size() * 256 == set.device_bytes());
    CHECK(s.store.statistics().parked_bytes == static_cast<std::uint64_t>(parked * small_store::bytes));
    for (index_t t = 5; t >= 0; --t)
      CHECK(s.first_of(all[static_cast<std::size_t>(t)]) == static_cast<float>(100 * t));
    CHECK(s.store.statistics().late == 0); // the last first: each was there, or on its way
    CHECK(s.store.statistics().restored == static_cast<std::uint64_t>(parked > 2 ? parked - 2 : 0));
    CHECK(s.backend.device().meter().allocations() == 1);
  }
}

TEST_CASE("no part of what was promised stays as it was, but for less than its alignment") {
  constexpr index_t bytes = 1000, n = 6;
  constexpr unsigned char pattern = 0xa5;
  for (const index_t budget : {index_t{0}, index_t{3 * 1024}, pl::offload_shape::no_limit}) {
    CAPTURE(budget);
    const auto shape = pl::offload_shape::of_layers(n, bytes, budget);
    const pl::working_set set = pl::offload_store<host>::working_set_of(shape);
    host be;
    pl::workspace<host> space(be, set);
    unsigned char* at[2] = {};
    const std::size_t size[2] = {set.device_bytes(), set.pinned_bytes()};
    {
      pl::working_set all(pl::tag::other);
      all.add("all", pl::memory_kind::device, size[0]).add("all", pl::memory_kind::pinned_host, size[1]);
      auto open = space.open(all);
      at[0] = open.device<unsigned char>(static_cast<index_t>(size[0])).p;
      at[1] = open.pinned<unsigned char>(static_cast<index_t>(size[1])).p;
    }
    for (const int i : {0, 1})
      if (size[i] > 0) std::memset(at[i], pattern, size[i]);
    auto s = be.make_stream("main");
    {
      pl::offload_store<host> store(be, space, shape);
      const pl::drain<host> end(be, s);
      std::vector<pl::offload_handle<pl::view<unsigned char>, host>> h;
      for (index_t t = 0; t < n; ++t) {
        h.push_back(store.open<pl::view<unsigned char>>(t));
        auto w = h.back().write(s, bytes);
        be.launch(s, pl::elements{bytes}, pl::fill<unsigned char>{1}, pl::out(w.view()));
      }
      for (std::size_t t = n; t-- > 0;) const auto r = h[t].get(s);
      store.raise_failure();
    } // its copies have ended
    for (const int i : {0, 1}) {
      std::size_t longest = 0;
      for (std::size_t b = 0, run = 0; b < size[i]; ++b) {
        run = at[i][b] == pattern ? run + 1 : 0;
        longest = std::max(longest, run);
      }
      CHECK(longest < pl::part_alignment);
    }
  }
}

TEST_CASE("a process grows by what was promised, and 2% at most") {
  if (support::bytes_of_process("VmHWM") == 0) {
    MESSAGE("left out: nobody says what the process holds");
    return;
  }
  constexpr index_t bytes = index_t{128} << 20, n = 7;
  host be;
  auto s = be.make_stream("main");
  // Memory that nobody has written: reading it takes none.
  const pl::device_buffer<unsigned char, host> x(be.device(), bytes, pl::tag::other);
  const auto shape = pl::offload_shape::of_layers(n, bytes);
  const std::size_t at_first = support::bytes_of_process("VmRSS");
  pl::workspace<host> space(be, pl::offload_store<host>::working_set_of(shape));
  const std::size_t promised = space.device_bytes() + space.pinned_bytes();
  CHECK(promised == std::size_t{9 * 128} << 20);
  pl::offload_store<host> store(be, space, shape);
  const pl::drain<host> end(be, s);
  std::vector<pl::offload_handle<pl::view<unsigned char>, host>> h;
  for (index_t t = 0; t < n; ++t) h.push_back(store.hold(s, t, x));
  for (std::size_t t = n; t-- > 0;) const auto r = h[t].get(s);
  be.wait(be.record(s));
  const std::size_t seen = support::bytes_of_process("VmHWM") - at_first;
  CHECK(seen <= promised + promised / 50);
  CHECK(seen >= promised - promised / 20); // it was all needed, and seen
}

TEST_CASE("after construction nothing is allocated") {
  small_store s(5, pl::offload_shape::no_limit, 2, 2);
  const auto step = [&] {
    std::array<std::array<pl::offload_handle<matrix, host>, 5>, 2> h;
    for (auto& micro_batch : h)
      for (index_t t = 0; t < 5; ++t) micro_batch[static_cast<std::size_t>(t)] = s.written(t, 1);
    for (auto& micro_batch : h)
      for (std::size_t t = 5; t-- > 0;) const auto r = micro_batch[t].get(s.stream);
  };
  step();
  s.backend.wait(s.backend.record(s.stream));
  const std::uint64_t before = counted_new::calls;
  for (int i = 0; i < 20; ++i) step();
  CHECK(counted_new::calls == before);
}

TEST_CASE("where a tensor is, by what has been enqueued") {
  using state = pl::offload_state;
  small_store s(4);
  auto a = s.store.open<matrix>(0);
  CHECK(a.state() == state::empty);
  {
    auto w = a.write(s.stream, 4, 8);
    CHECK(a.state() == state::resident);
    s.backend.launch(s.stream, pl::elements{32}, support::count_up{7}, pl::out(pl::as_row(w.view())));
  }
  CHECK(a.state() == state::parking);
  auto b = s.written(1, 1), c = s.written(2, 2);
  CHECK(a.state() == state::parked);
  CHECK(c.state() == state::parking);
  a.prefetch();
  CHECK(a.state() == state::restoring);
  CHECK(b.state() == state::parked);
  CHECK(s.first_of(a) == 7.0F);
  CHECK(a.state() == state::resident);
  small_store kept(2, 0);
  auto d = kept.written(0, 3);
  CHECK(d.state() == state::resident);
  CHECK(kept.first_of(d) == 3.0F);
}

TEST_CASE("tensors with rows apart, with an offset, of other types; what is no row of elements is refused") {
  small_store s(3);
  pl::device_buffer<float, host> big(s.backend.device(), 400, pl::tag::other);
  const pl::drain<host> before_it_goes(s.backend, s.stream);
  s.backend.launch(s.stream, pl::elements{400}, support::count_up{0}, pl::out(big.all()));
  const pl::tile<const float> strided{big.data() + 5, 4, 8, 20};
  auto a = s.store.hold(s.stream, 0, strided);
  s.backend.launch(s.stream, pl::elements{400}, pl::fill<float>{-1},
                   pl::out(big.all())); // it is the caller's again
  auto b = s.written(1, 1), c = s.written(2, 2);
  {
    auto r = a.get(s.stream);
    CHECK(r.view().contiguous());
    const auto values = support::from_device(s.backend, s.stream, pl::as_row(r.view()));
    for (index_t i = 0; i < 32; ++i)
      CHECK(values[static_cast<std::size_t>(i)] == static_cast<float>(5 + i / 8 * 20 + i % 8));
  }
  a = {};
  auto v = s.store.hold(s.stream, 0, pl::view<const float>{big.data() + 3, 7});
  {
    auto r = v.get(s.stream);
    CHECK(support::from_device(s.backend, s.stream, r.view()) == std::vector<float>(7, -1));
  }
  v = {};
  CHECK(has(refusal([&] { s.store.hold(s.stream, 0, pl::tile<float>{big.data(), 4, 8, 3}); }), "overlap"));
  auto again = s.written(0, 5); // nothing has been taken by what was refused
  CHECK(s.first_of(again) == 5.0F);
}

TEST_CASE("what cannot be is refused, says why, and changes nothing") {
  small_store s(3);
  auto a = s.written(0, 10), b = s.written(1, 20), c = s.written(2, 30);
  CHECK(has(refusal([&] { s.store.open<matrix>(0); }), "one forward too many"));
  CHECK(has(refusal([&] { s.store.open<matrix>(3); }), "no tensor 3 among 3"));
  CHECK(has(refusal([&] { s.store.open<matrix>(-1); }), "no tensor -1"));
  CHECK(has(refusal([&] { a.write(s.stream, 4, 8); }), "written and parked already"));
  {
    auto moved = std::move(a);
    CHECK(has(refusal([&] { a.get(s.stream); }), "moved from"));
    CHECK(has(refusal([&] { a.write(s.stream, 4, 8); }), "moved from"));
    CHECK(has(refusal([&] { a.prefetch(); }), "moved from"));
    CHECK_FALSE(static_cast<bool>(a));
    a = std::move(moved);
  }
  {
    auto one = a.get(s.stream), two = b.get(s.stream);
    CHECK(has(refusal([&] { a.get(s.stream); }), "open scope"));
    CHECK(has(refusal([&] { c.get(s.stream); }), "restored_at_once"));
    one.close();
    CHECK(s.first_of(c) == 30.0F);
  }
  c = {};
  auto d = s.store.open<matrix>(2);
  CHECK(has(refusal([&] { d.get(s.stream); }), "not been written"));
  CHECK(has(refusal([&] { d.prefetch(); }), "not been written"));
  CHECK(has(refusal([&] { d.write(s.stream, 4, 9); }), "144 bytes, but the shape has 128"));
  CHECK(has(refusal([&] { d.write(s.stream, index_t{1} << 40, index_t{1} << 40); }), "cannot be"));
  { const auto w = d.write(s.stream, 2, 8); }
  CHECK(s.first_of(a) == 10.0F);
  CHECK(s.first_of(b) == 20.0F);

  CHECK(
      has(refusal([&] { pl::offload_store<host>(s.backend, s.space, small_store::shape_of(3, 9999, 2, 1)); }),
          "are free"));
  pl::workspace<host> mine(s.backend, pl::offload_store<host>::working_set_of(
                                          small_store::shape_of(3, 9999, 2, 1), pl::offload_slab::of_caller));
  CHECK(mine.pinned_bytes() == 0);
  pl::pinned_buffer<unsigned char, host> slab(s.backend.pinned(), 3 * 256, pl::tag::other);
  const auto with = [&](pl::view<unsigned char, pl::host_space> part) {
    return refusal(
        [&] { pl::offload_store<host>(s.backend, mine, small_store::shape_of(3, 9999, 2, 1), part); });
  };
  CHECK(has(with(slab.all().sub(0, 700)), "700 bytes, but 768 are needed"));
  CHECK(has(with({slab.data() + 8, 768}), "multiple of 256"));
  CHECK(with(slab.all()).empty());
}

TEST_CASE("what an exception keeps from being written is not parked, and a scope's failure is not lost") {
  small_store s(3);
  auto h = s.store.open<matrix>(0);
  try {
    auto w = h.write(s.stream, 4, 8);
    throw 1;
  } catch (int) {
  }
  CHECK(h.state() == pl::offload_state::empty);
  CHECK(s.store.statistics().parked == 0);
  {
    auto w = h.write(s.stream, 4, 8);
    s.backend.launch(s.stream, pl::elements{32}, support::count_up{4}, pl::out(pl::as_row(w.view())));
  }
  CHECK(s.first_of(h) == 4.0F);
  {
    auto r = h.get(s.stream);
    h = {}; // while a scope is open: its memory stays until that closes
    CHECK(has(refusal([&] { s.store.open<matrix>(0); }), "too many"));
  }
  h = s.written(0, 6);
  CHECK(s.first_of(h) == 6.0F);

  pl::dry_options options;
  options.throw_at = 0; // the copy of the first park
  dry be("", options);
  const auto shape = pl::offload_shape::of_layers(3, 64);
  pl::workspace<dry> space(be, pl::offload_store<dry>::working_set_of(shape));
  auto stream = be.make_stream("main");
  pl::offload_store<dry> store(be, space, shape);
  auto first = store.open<pl::view<float>>(0);
  { const auto w = first.write(stream, 16); }
  CHECK_THROWS_AS(store.raise_failure(), pl::backend_error);
  CHECK_THROWS_AS(first.get(stream), pl::backend_error);
  CHECK_THROWS_AS(store.open<pl::view<float>>(1), pl::backend_error);
}

TEST_CASE("statistics: what was late, what came for nothing, stalls, and advice") {
  small_store s(8);
  std::vector<pl::offload_handle<matrix, host>> h;
  for (index_t t = 0; t < 8; ++t) h.push_back(s.written(t, static_cast<float>(t)));
  for (const std::size_t t : {0U, 4U, 2U, 5U}) CHECK(s.first_of(h[t]) == static_cast<float>(t));
  CHECK(s.store.statistics().late == 4);
  CHECK(s.store.statistics().restored == 5); // and 3, which was next after 4
  CHECK(has(s.store.statistics().advice(), "another order"));
  h[0].prefetch(); // in the place of 5
  h[1].prefetch(); // in that of 3, which came for nothing
  CHECK(s.store.statistics().dropped == 1);
  for (const std::size_t t : {1U, 0U}) CHECK(s.first_of(h[t]) == static_cast<float>(t));
  CHECK(s.store.statistics().late == 4);
  CHECK(s.store.statistics().restored == 7);

  auto shape = pl::offload_shape::of_layers(6, 1 << 16);
  shape.measure_stalls = true;
  shape.costs.recompute_seconds = 1e-12;
  host be;
  pl::workspace<host> space(be, pl::offload_store<host>::working_set_of(shape));
  auto stream = be.make_stream("main");
  pl::offload_store<host> store(be, space, shape);
  {
    std::vector<pl::offload_handle<pl::view<float>, host>> all;
    for (index_t t = 0; t < 6; ++t) {
      all.push_back(store.open<pl::view<float>>(t));
      const auto w = all.back().write(stream, 1 << 14);
    }
    for (std::size_t t = 6; t-- > 0;) const auto r = all[t].get(stream);
  }
  be.wait(be.record(stream));
  const auto stalled = store.statistics();
  CHECK(stalled.stall_seconds > 0);
  CHECK(has(stalled.advice(), "slower than recomputing"));
  CHECK(std::string(pl::offload_statistics{}.advice()).empty());
}
