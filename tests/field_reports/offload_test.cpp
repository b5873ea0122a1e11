// SPDX-License-Identifier: Apache-2.0
//
// What broke in systems that park tensors in host memory, and what happens here instead.
#include "support/offload_layers.hpp"
#include "support/offload_program.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/offload.hpp>
#include <plateau/testing/seeded_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;

namespace {

using dry = pl::dry_run<pl::host_backend>;
using values = pl::view<float>;
template <class B> using handle = pl::offload_handle<values, B>;

// A store of tensors of `n` floats each, and two streams.
template <class Backend> struct bench_of {
  Backend& be;
  pl::offload_shape shape;
  pl::workspace<Backend> space;
  typename Backend::stream main, other;
  pl::offload_store<Backend> store;
  pl::drain<Backend> after_main, after_other;

  bench_of(Backend& b, pl::offload_shape s)
      : be(b), shape(std::move(s)), space(b, pl::offload_store<Backend>::working_set_of(shape)),
        main(b.make_stream("main")), other(b.make_stream("other")), store(b, space, shape),
        after_main(b, main), after_other(b, other) {}
  handle<Backend> write(typename Backend::stream& s, index_t t, float first) {
    auto h = store.template open<values>(t);
    auto w = h.write(s, shape.tensors[static_cast<std::size_t>(t)].bytes / 4);
    be.launch(s, pl::elements{w.view().n}, support::count_up{first}, pl::out(w.view()));
    w.close();
    return h;
  }
  std::vector<float> read(typename Backend::stream& s, handle<Backend>& h) {
    auto r = h.get(s);
    return support::from_device(be, s, r.view());
  }
};
std::vector<float> counted(float first, index_t n) {
  std::vector<float> v;
  for (index_t i = 0; i < n; ++i) v.push_back(first + static_cast<float>(i));
  return v;
}

// All of what a program does, for each wait that it may forget: how often the order check objects where the
// source line has this text.
template <class Program> int missed_waits(const char* file, Program program) {
  std::uint64_t waits = 1;
  int missed = 0;
  for (std::uint64_t k = 0; k <= waits; ++k) {
    pl::dry_options options;
    if (k < waits) options.drop_wait = k;
    dry be("", options);
    program(be);
    waits = be.recorder().waits();
    if (!be.recorder().dropped()) {
      for (const auto& f : be.recorder().findings()) FAIL_CHECK(be.recorder().text_of(f));
      continue;
    }
    if (be.recorder().dropped()->text().find(file) != std::string::npos) missed += be.recorder().found() > 0;
  }
  return missed;
}
template <class Program> void check_any_order(Program program) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    pl::seeded_backend be(seed);
    program(be);
  }
}

} // namespace

// A tensor is evicted on one stream and asked back at once on another one, into a slot that only that one has
// used: nothing but the wait for its own copy out orders the copy in behind it.
TEST_CASE("F1: a restore waits for the end of the park, whoever asks for it") {
  const auto program = [](auto& be) {
    bench_of b(be, pl::offload_shape::of_layers(5, 256));
    auto e = b.write(b.main, 0, 100), f = b.write(b.main, 1, 200), c = b.write(b.main, 2, 300);
    be.wait(b.other, be.record(b.main));
    CHECK((b.read(b.other, e) == counted(100, 64) || !support::has_bytes<std::remove_cvref_t<decltype(be)>>));
    auto a = b.write(b.main, 3, 400);
    { const auto again = e.get(b.other); }
    auto d = b.store.template open<values>(4);
    auto writing = d.write(b.main, 64); // a goes
    be.launch(b.main, pl::elements{64}, support::count_up{500}, pl::out(writing.view()));
    CHECK(a.state() == pl::offload_state::parked);
    const auto found = b.read(b.other, a); // into the slot of e
    CHECK((found == counted(400, 64) || found.empty()));
    writing.close();
  };
  CHECK(missed_waits("offload_store.hpp", program) > 5);
  check_any_order(program);
}

TEST_CASE("F2: a handle that goes while its copy is in flight: the copy's memory is not used again before") {
  const auto program = [](auto& be) {
    bench_of b(be, pl::offload_shape::of_layers(4, 4096));
    for (int round = 0; round < 3; ++round) {
      auto a = b.write(b.main, 0, 1);
      a = {}; // its copy out is in flight
      auto c = b.write(b.main, 1, 2000), d = b.write(b.main, 2, 3000), e = b.write(b.main, 3, 4000);
      c.prefetch(); // and one in
      c = {};
      auto f = b.write(b.main, 0, 5000), g = b.write(b.main, 1, 6000);
      for (auto [h, first] : {std::pair{&g, 6000}, {&f, 5000}, {&e, 4000}, {&d, 3000}}) {
        const auto found = b.read(b.main, *h);
        CHECK((found == counted(static_cast<float>(first), 1024) || found.empty()));
      }
    }
  };
  CHECK(missed_waits("offload_store.hpp", program) > 10);
  check_any_order(program);
  // The tensor that was held is the caller's at once, whatever becomes of it.
  pl::host_backend be;
  bench_of b(be, pl::offload_shape::of_layers(3, 4096));
  std::vector<handle<pl::host_backend>> held;
  for (index_t t = 0; t < 3; ++t) {
    const pl::device_buffer<float, pl::host_backend> x(be.device(), 1024, pl::tag::other);
    const pl::drain<pl::host_backend> before_it_goes(be, b.main); // not the store's copies, which go on
    be.launch(b.main, pl::elements{1024}, support::count_up{static_cast<float>(t)}, pl::out(x.all()));
    held.push_back(b.store.hold(b.main, t, x));
    be.launch(b.main, pl::elements{1024}, pl::fill<float>{-1}, pl::out(x.all()));
  }
  for (index_t t = 0; t < 3; ++t)
    CHECK(b.read(b.main, held[static_cast<std::size_t>(t)]) == counted(static_cast<float>(t), 1024));
}

TEST_CASE("F3: the slot of a restored tensor is not used again before its consumer has ended") {
  const auto program = [](auto& be) {
    bench_of b(be, pl::offload_shape::of_layers(6, 1024));
    std::vector<handle<std::remove_cvref_t<decltype(be)>>> all;
    for (index_t t = 0; t < 6; ++t) all.push_back(b.write(b.main, t, static_cast<float>(1000 * t)));
    pl::device_buffer<float, std::remove_cvref_t<decltype(be)>> sums(be.device(), 6 * 256, pl::tag::other);
    const pl::drain before_they_go(be, b.main);
    for (index_t t = 5; t >= 0; --t) { // consumers are slow; nobody waits for them
      auto r = all[static_cast<std::size_t>(t)].get(b.main);
      be.copy(b.main, pl::in(r.view()), pl::out(sums.all().sub(256 * t, 256)));
      r.close();
      all[static_cast<std::size_t>(t)] = {}; // gone before the consumer has begun, perhaps
    }
    const auto found = support::from_device(be, b.main, sums.all());
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(found[i] == static_cast<float>(1000 * (i / 256) + i % 256));
  };
  CHECK(missed_waits("offload_store.hpp", program) > 10);
  check_any_order(program);
}

TEST_CASE("F4: no host budget, or less than one tensor: it stays on the device, and the store says so") {
  for (const index_t budget : {0, 1023}) {
    pl::host_backend be;
    bench_of b(be, pl::offload_shape::of_layers(5, 1024, budget));
    CHECK(be.pinned().meter().current() == 0);
    CHECK(b.space.device_bytes() == 5 * 1024);
    std::vector<handle<pl::host_backend>> all;
    for (index_t t = 0; t < 5; ++t) {
      CHECK(b.store.why(t).find("stays on the device: the host budget of " + std::to_string(budget)) !=
            std::string::npos);
      all.push_back(b.write(b.main, t, static_cast<float>(1000 * t)));
    }
    for (index_t t = 0; t < 5; ++t)
      CHECK(b.read(b.main, all[static_cast<std::size_t>(t)]) == counted(static_cast<float>(1000 * t), 256));
    CHECK(b.store.statistics().parked == 0);
  }
}

TEST_CASE("F5: tensors of unequal size, micro-batches interleaved, backward out of order and twice") {
  using support::again;
  for (const std::vector<int>& order : {std::vector<int>{1, 0}, {0, 1}, {0, 0, 1, 1}, {1, 0, 1}}) {
    support::offload_net n;
    n.unequal = true;
    n.passes = 2;
    n.backward = order;
    n.steps = 2;
    pl::host_backend be;
    const auto expected = n.run<again::kept, float>(be, false), found = n.run<again::kept, float>(be);
    CHECK(found.y == expected.y);
    CHECK(found.dx == expected.dx);
    CHECK(found.dw == expected.dw);
  }
  // Tensor by tensor: 0 and 1 of one micro-batch between those of the other, and asked for in every order.
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  do {
    pl::host_backend be;
    pl::offload_shape shape;
    shape.tensors = {{256}, {1024}, {64}};
    shape.in_flight = 2;
    bench_of b(be, shape);
    std::vector<handle<pl::host_backend>> all;
    for (index_t i = 0; i < 6; ++i) all.push_back(b.write(b.main, i / 2, static_cast<float>(1000 * i)));
    for (int again_and = 0; again_and < 2; ++again_and)
      for (const int i : order)
        CHECK(
            b.read(b.main, all[static_cast<std::size_t>(i)]) ==
            counted(static_cast<float>(1000 * i), shape.tensors[static_cast<std::size_t>(i / 2)].bytes / 4));
  } while (std::next_permutation(order.begin(), order.end()) && order.front() == 0);
}
