// SPDX-License-Identifier: Apache-2.0
//
// The backend contract: what the host and streams see of one another. Work of a stream runs in order, events
// order streams, a fetch waits; a failure reaches whoever waits for what came after it, and nobody else.
#pragma once

#include "backend_rig.hpp"

#include <plateau/column_sum.hpp>
#include <plateau/counters.hpp>
#include <plateau/drain.hpp>
#include <plateau/kernels.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace backend_contract {

// Long enough that an order which nothing enforces is seen to be wrong almost always.
inline void dawdle() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

template <class Backend> void stream_order(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  auto h = r.template pinned<std::int32_t>(2), g = r.template pinned<std::int32_t>(2);
  auto d = r.template device<std::int32_t>(2);
  h.data()[0] = h.data()[1] = g.data()[0] = g.data()[1] = 0;

  // Host tasks run after what was issued before them, and before what comes after.
  r.b.launch(r.s, elements{2}, pl::fill<std::int32_t>{20}, out(d.all()));
  r.b.copy(r.s, in(d.all()), out(h.all()));
  r.b.host_task(
      r.s,
      [](view<const std::int32_t, pl::host_space> from, view<std::int32_t, pl::host_space> to, int factor) {
        dawdle();
        to[0] = from[0] * factor + 1;
        to[1] = from[1] * factor + 2;
      },
      in(h.all()), out(g.all()), 2);
  r.b.copy(r.s, in(g.all()), out(d.all()));
  CHECK(r.download(d.all()) == std::vector<std::int32_t>{41, 42});

  // One stream waits for another; two chains of waits back and forth.
  auto other = r.b.make_stream("other");
  for (std::int32_t step = 0; step < 5; ++step) {
    r.b.host_task(
        r.s, [step](view<std::int32_t, pl::host_space> v) { dawdle(), v[0] = v[1] + step; }, inout(h.all()));
    r.b.wait(other, r.b.record(r.s));
    r.b.host_task(
        other, [](view<std::int32_t, pl::host_space> v) { dawdle(), v[1] = 3 * v[0]; }, inout(h.all()));
    r.b.wait(r.s, r.b.record(other));
  }
  r.finish();
  std::int32_t expected = 20;
  for (std::int32_t step = 0; step < 5; ++step) expected = 3 * (expected + step);
  CHECK(h.data()[1] == expected);

  // A stream may wait for itself; an event stands for what came before it only, and outlives its stream.
  r.b.wait(r.s, r.b.record(r.s));
  typename Backend::event late;
  {
    auto brief = r.b.make_stream("brief");
    r.b.host_task(
        brief, [](view<std::int32_t, pl::host_space> v) { dawdle(), v[0] = 77; }, some(g.all()));
    late = r.b.record(brief);
  }
  CHECK(g.data()[0] == 77); // a stream that ends has done its work
  r.b.wait(late);
  r.b.wait(r.s, late);

  // Moved streams stay the same stream.
  auto moved = std::move(other);
  r.b.host_task(
      moved, [](view<std::int32_t, pl::host_space> v) { dawdle(), v[0] = 78; }, some(g.all()));
  r.b.wait(r.b.record(moved));
  CHECK(g.data()[0] == 78);
  r.finish();
}

template <class Backend> void fetching(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  // A default event is done: nobody waits for it.
  r.b.wait(typename Backend::event{});
  r.b.wait(r.s, typename Backend::event{});
  r.finish();

  auto h = r.template pinned<std::int64_t>(3);
  for (int i = 0; i < 3; ++i) h.data()[i] = i;
  const pl::counters before = r.b.counters();
  std::vector<std::int64_t> into(3, -1);
  r.b.fetch(typename Backend::event{}, in(h.all()), std::span(into), "initial", std::int64_t{5});
  CHECK(into == std::vector<std::int64_t>{0, 1, 2}); // the value, not the dry answer
  CHECK((r.b.counters() - before).host_round_trips == 1);

  auto d = r.template upload<std::int64_t>({10, 20, 30});
  r.b.host_task(r.s, [] { dawdle(); });
  r.b.copy(r.s, in(d.all()), out(h.all()));
  r.b.fetch(r.b.record(r.s), in(h.all().sub(1, 2)), std::span(into).first(2), "two of them");
  CHECK(into == std::vector<std::int64_t>{20, 30, 2});
  CHECK((r.b.counters() - before).host_round_trips == 2);
  r.b.wait(r.b.record(r.s)); // a wait is no round trip
  CHECK((r.b.counters() - before).host_round_trips == 2);
}

template <class Backend> void failures(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  auto quiet = r.b.make_stream("quiet"), follower = r.b.make_stream("follower");
  auto h = r.template pinned<std::int32_t>(1);
  h.data()[0] = 0;
  const auto early = r.b.record(r.s);
  r.b.host_task(
      r.s, [](view<std::int32_t, pl::host_space> v) { v[0] = 1; }, some(h.all()));
  const auto before = r.b.record(r.s);
  const int line = __LINE__ + 1;
  r.b.host_task(r.s, [] { throw std::runtime_error("the task failed: 7 apples"); });
  const auto after = r.b.record(r.s);
  r.b.wait(follower, after);
  const auto behind = r.b.record(follower);

  // The text surfaces at each wait for what came after, on every stream that waited, as often as one asks.
  for (int time = 0; time < 2; ++time) {
    CHECK(has(refusal<pl::error>([&] { r.b.wait(after); }), "7 apples"));
    const std::string text = refusal<pl::error>([&] { r.b.wait(behind); });
    CHECK(has(text, "7 apples"));
    CHECK(has(text, "stream 'main'")); // where it failed, not where it was waited for
    CHECK(names_line(text, "backend_order.hpp", line - 1, line + 1));
    CHECK(has(refusal<pl::error>([&] { r.b.wait(r.b.record(r.s)); }), "7 apples"));
  }
  std::int32_t into = -1;
  CHECK(has(refusal<pl::error>([&] { r.b.fetch(after, in(h.all()), std::span(&into, 1), "value"); }),
            "7 apples"));
  CHECK(into == -1);
  // Events from before it stay good, and so does a stream that does not wait.
  r.b.wait(early);
  r.b.wait(before);
  CHECK(h.data()[0] == 1);
  r.b.wait(quiet, before);
  r.b.host_task(
      quiet, [](view<std::int32_t, pl::host_space> v) { v[0] = 2; }, some(h.all()));
  r.b.wait(r.b.record(quiet));
  CHECK(h.data()[0] == 2);
  // What is issued later is not run; the failure is the first one. A drain does not throw.
  {
    const pl::drain<Backend> at_end(r.b, r.s);
    r.b.host_task(
        r.s, [](view<std::int32_t, pl::host_space> v) { v[0] = 3; }, some(h.all()));
    r.b.host_task(r.s, [] { throw std::runtime_error("a second failure"); });
  }
  CHECK(h.data()[0] == 2);
  CHECK(has(refusal<pl::error>([&] { r.finish(); }), "7 apples"));
}

// Errors keep their type; those of kernels surface like those of tasks.
template <class Backend> void failing_kernels(const subject<Backend>& under_test) {
  {
    rig<Backend> r(under_test);
    r.b.host_task(r.s, [] { throw pl::budget_exceeded("no memory in the task"); });
    CHECK(has(refusal<pl::budget_exceeded>([&] { r.finish(); }), "no memory in the task"));
  }
  if constexpr (kernels_throw<Backend>) {
    rig<Backend> r(under_test);
    auto d = r.template device<std::int32_t>(100);
    r.b.launch(r.s, elements{100}, fail_at{63}, some(d.all()));
    CHECK(has(refusal<pl::error>([&] { r.finish(); }), "the kernel failed at element 63"));
  }
}

// The same program twice, on streams that overlap: the same bits.
template <class Backend> void identical_runs(const subject<Backend>& under_test) {
  const auto run = [&] {
    rig<Backend> r(under_test);
    const index_t row_count = 300, columns = 40;
    auto x = r.upload(numbers<float>(row_count * columns, 1));
    auto w = r.upload(numbers<float>(columns * columns, 2));
    auto y = r.template device<float>(row_count * columns);
    auto sums = r.upload(numbers<float>(columns, 3));
    auto scratch = r.template device<unsigned char>(
        static_cast<index_t>(pl::column_sum_scratch_bytes(row_count, columns)));
    auto gemm_scratch = r.template device<unsigned char>(
        static_cast<index_t>(Backend::template gemm_scratch_bytes<float, float, float>(
            transpose::no, transpose::yes, row_count, columns, columns)));
    auto side = r.b.make_stream("side");
    for (int step = 0; step < 3; ++step) {
      r.b.gemm(r.s, transpose::no, transpose::yes, 0.1F, in(x.matrix(row_count, columns)),
               in(w.matrix(columns, columns)), 0.0F, out(y.matrix(row_count, columns)), gemm_scratch.all());
      r.b.wait(side, r.b.record(r.s));
      pl::column_sum(r.b, side, in(y.matrix(row_count, columns)), inout(sums.all()), scratch.all());
      r.b.launch(r.s, elements{x.size()}, pl::add{}, in(y.all()), inout(x.all()));
      r.b.wait(r.s, r.b.record(side));
    }
    return std::pair(r.download(x.all()), r.download(sums.all()));
  };
  const auto first = run(), second = run();
  CHECK(same_bits(first.first, second.first));
  CHECK(same_bits(first.second, second.second));
}

} // namespace backend_contract
