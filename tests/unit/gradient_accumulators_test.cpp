// SPDX-License-Identifier: Apache-2.0
//
// Gradients that leave during backward, against gradients that stay: the same bits for any number of layers,
// slots and micro-batches, with layers brought back ahead or not, under any order of operations, and with
// each wait left out.
#include "support/counted_new.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/close_step.hpp>
#include <plateau/drain.hpp>
#include <plateau/staging/gradient_accumulators.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;

namespace {

struct backward_case {
  std::vector<std::vector<index_t>> layers{{5, 9}, {0, 70}, {64, 1}, {3, 3}}; // pieces of each
  std::vector<index_t> ends{11, 6};                                           // resident
  int slots = 2, micros = 3, steps = 2;
  bool ahead = true;
  int skipped = -1;         // a layer without a gradient in odd steps
  bool all_skipped = false; // the same of all layers
  int given_up = -1;        // the layer in whose backward the first step ends
};

// Two additions that do not commute with others.
struct add_twice {
  int step, micro, part;

  // A quotient: a product might be fused with the addition.
  PLATEAU_HD static float term(index_t i, int a, int b, int c, int d) {
    return 1 / static_cast<float>(((i * 31 + a * 17 + b * 101 + c * 7) % 997) * d + 1);
  }
  template <class S> PLATEAU_HD void operator()(index_t i, pl::view<float, S> sums) const {
    sums[i] = sums[i] + term(i, step, micro, part, 1);
    sums[i] = sums[i] + term(i, step, micro, part, -5);
  }
};
// An update at the end of a step: it reads the sums, and writes over them.
struct take_away {
  std::vector<float>* into;
  bool clear;
  void operator()(pl::view<float, pl::host_space> home) const {
    if (clear) into->clear();
    into->insert(into->end(), home.p, home.p + home.n);
    for (index_t i = 0; i < home.n; ++i) home[i] = -77;
  }
};

struct outcome {
  std::vector<float> sums; // of the last step
  std::size_t left = 0, device = 0;
  std::uint64_t allocations = 0;
};

template <class Ranks> outcome run_case(const backward_case& c, const Ranks& on) {
  using backend_type = typename Ranks::backend;
  outcome result;
  on.run(1, [&](typename Ranks::communicator& world, backend_type& backend) {
    const auto note = [&] {
      result.left = backend.device().meter().current() + backend.pinned().meter().current();
    };
    try {
      std::vector<pl::pinned_buffer<float, backend_type>> memory;
      std::vector<pl::gradient_part> parts;
      const auto add_part = [&](const std::vector<index_t>& pieces, bool resident) {
        pl::gradient_part p;
        for (const index_t n : pieces) {
          memory.emplace_back(backend.pinned(), n, pl::tag::gradients);
          p.home.push_back(memory.back().all());
        }
        p.resident = resident;
        parts.push_back(p);
      };
      for (const auto& pieces : c.layers) add_part(pieces, false);
      if (!c.ends.empty()) add_part(c.ends, true);
      const int ends = static_cast<int>(c.layers.size());
      const auto set = pl::gradient_accumulators<backend_type>::working_set_of(parts, c.slots);
      pl::gradient_accumulators<backend_type> store(backend, parts, c.slots);
      CHECK(backend.device().meter().current(pl::tag::gradients) == set.device_bytes());
      CHECK(set.pinned_bytes() == 0);
      result.device = set.device_bytes();
      auto stream = backend.make_stream("main");
      const pl::drain<backend_type> before_they_go(backend, stream);
      const auto add_to = [&](int part, int step, int micro) {
        for (std::size_t i = 0; i < parts[static_cast<std::size_t>(part)].home.size(); ++i) {
          const auto sums = store.piece(part, i);
          CHECK(sums.n == parts[static_cast<std::size_t>(part)].home[i].n);
          backend.launch(stream, pl::elements{sums.n}, add_twice{step, micro, part}, pl::inout(sums));
        }
      };
      std::uint64_t calls = 0;
      for (int step = 0; step < c.steps; ++step) {
        if (step + 1 == c.steps) calls = counted_new::calls.load();
        store.begin_step();
        bool whole = true;
        for (int micro = 0; micro < c.micros && whole; ++micro) {
          if (!c.ends.empty()) {
            store.acquire(stream, ends);
            add_to(ends, step, micro);
          }
          for (int l = ends - 1; l >= 0; --l) {
            if ((l == c.skipped || c.all_skipped) && step % 2 == 1) continue;
            store.acquire(stream, l);
            if (c.ahead && l > 0 && l - 1 != c.skipped) store.prefetch(l - 1);
            add_to(l, step, micro);
            whole = step != 0 || l != c.given_up;
            if (!whole) break;
            store.is_final(stream, l);
          }
          if (c.ends.empty() || !whole) continue;
          add_to(ends, step, micro);
          store.is_final(stream, ends);
        }
        if (!whole) continue;
        store.finish(stream);
        if (step + 1 == c.steps) result.allocations = counted_new::calls.load() - calls;
        bool first = true;
        for (const auto& p : parts)
          for (const auto& home : p.home) {
            backend.host_task(stream, take_away{&result.sums, first}, pl::inout(home));
            first = false;
          }
      }
      pl::close_step(backend, world, stream); // once: a wait of the host would hide those of streams
    } catch (...) {
      note();
      throw;
    }
    note();
  });
  return result;
}

// The same with gradients that stay.
std::vector<float> expected_of(const backward_case& c) {
  std::vector<float> all;
  const int step = c.steps - 1, ends = static_cast<int>(c.layers.size());
  for (int part = 0; part <= ends; ++part)
    for (const index_t n : part == ends ? c.ends : c.layers[static_cast<std::size_t>(part)])
      for (index_t i = 0; i < n; ++i) {
        float sum = 0;
        const bool none = part == c.skipped && step % 2 == 1;
        for (int micro = 0; micro < c.micros && !none; ++micro)
          for (int times = 0; times < (part == ends ? 2 : 1); ++times) {
            sum = sum + add_twice::term(i, step, micro, part, 1);
            sum = sum + add_twice::term(i, step, micro, part, -5);
          }
        all.push_back(sum);
      }
  return all;
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

} // namespace

TEST_CASE(
    "O6: the bits are those of gradients that stay; a layer without one has zeros, not those of the step "
    "before") {
  for (int layers = 0; layers <= 4; ++layers)
    for (int slots = 1; slots <= 4; ++slots)
      for (int micros = 1; micros <= 3; ++micros)
        for (const bool ahead : {true, false}) {
          CAPTURE(layers);
          CAPTURE(slots);
          CAPTURE(micros);
          backward_case c;
          c.layers.resize(static_cast<std::size_t>(layers));
          c.slots = slots;
          c.micros = micros;
          c.ahead = ahead;
          c.skipped = layers > 0 && (layers + slots) % 3 == 0 ? layers / 2 : -1;
          const outcome ran = run_case(c, support::on_threads<>{});
          const auto expected = expected_of(c);
          REQUIRE(ran.sums.size() == expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i)
            if (ran.sums[i] != expected[i])
              FAIL_CHECK("sum " << i << ": " << ran.sums[i] << " " << expected[i]);
          CHECK(ran.left == 0);
        }
}

TEST_CASE("the device holds two layers and the resident parts, however many layers there are") {
  backward_case c;
  c.steps = 1;
  const std::size_t layer = 4 * 128, ends = 4 * (64 + 64); // each piece a multiple of 256 bytes
  CHECK(run_case(c, support::on_threads<>{}).device == 2 * layer + ends);
  for (int i = 0; i < 40; ++i) c.layers.push_back({7, 12});
  CHECK(run_case(c, support::on_threads<>{}).device == 2 * layer + ends);
  c.slots = 3;
  CHECK(run_case(c, support::on_threads<>{}).device == 3 * layer + ends);
}

TEST_CASE("a step that is given up in the middle of a layer leaves nothing in the next one") {
  for (const bool ahead : {true, false})
    for (const int layer : {0, 2, 3})
      for (const bool resident : {true, false}) {
        backward_case c;
        c.ahead = ahead;
        c.given_up = layer;
        c.slots = 2 + layer % 2;
        if (!resident) c.ends.clear();
        const auto expected = expected_of(c);
        CHECK(same(run_case(c, support::on_threads<>{}).sums, expected));
        for (std::uint64_t seed = 0; seed < 20; ++seed)
          CHECK(same(run_case(c, support::in_turns<>{{seed, nullptr}}).sums, expected));
      }
}

TEST_CASE("from the second step on nothing is allocated") {
  backward_case c;
  c.steps = 3;
  CHECK(run_case(c, support::on_threads<>{}).allocations == 0);
}

TEST_CASE("the same bits under any order of operations, and each keeps the word of its tags") {
  for (const bool ahead : {true, false}) {
    backward_case c;
    c.ahead = ahead;
    c.skipped = 1;
    const auto expected = run_case(c, support::on_threads<>{}).sums;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      CAPTURE(seed);
      CHECK(same(run_case(c, support::in_turns<>{{seed, nullptr}}).sums, expected));
    }
    for (std::uint64_t seed = 0; seed < 3; ++seed)
      CHECK(same(run_case(c, support::in_turns<pl::audited_backend>{{seed, nullptr}}).sums, expected));
  }
}

TEST_CASE("O4: nothing is unordered, and every wait is missed where it is left out") {
  int waits_of_store = 0;
  for (int i = 0; i < 6; ++i) {
    backward_case c;
    c.ahead = i % 2 == 0;
    c.slots = 2 + i / 3;
    if (i >= 2) c.ends.clear();     // they leave last, and who waits for them has waited for all
    if (i == 2) c.layers.resize(2); // they stay in their slots
    if (i == 3) c.skipped = 1;
    if (i == 4) c.all_skipped = true;
    if (i == 5) c.given_up = 2;
    pl::dry_ranks ran;
    run_case(c, support::without_data<>{{}, &ran});
    REQUIRE_FALSE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    for (std::uint64_t k = 0; k < ran.recorders[0]->waits(); ++k) {
      pl::dry_options options;
      options.drop_wait = k;
      pl::dry_ranks with;
      run_case(c, support::without_data<>{options, &with});
      REQUIRE(with.recorders[0]->dropped().has_value());
      const std::string text = with.recorders[0]->dropped()->text(), place = text.substr(text.rfind('/') + 1);
      CAPTURE(place);
      CAPTURE(i);
      CAPTURE(k);
      if (place.find("gradient_accumulators.hpp") != 0) continue; // those that close the step
      ++waits_of_store;
      CHECK_FALSE(with.findings().empty());
    }
  }
  CHECK(waits_of_store == 325);
}

TEST_CASE("an operation that fails, whichever it is, leaks nothing and leaves nothing running") {
  backward_case c;
  c.micros = 2;
  c.steps = 1;
  pl::dry_ranks ran;
  run_case(c, support::without_data<>{{}, &ran});
  for (std::uint64_t k = 0; k < ran.recorders[0]->operations(); ++k) {
    CAPTURE(k);
    pl::dry_options options;
    options.throw_at = k;
    pl::dry_ranks with;
    CHECK(run_case(c, support::without_data<>{options, &with}).left == 0);
    REQUIRE(with.cause.has_value());
    for (const std::string& each : with.findings()) FAIL_CHECK(each);
  }
}

TEST_CASE("a call out of order is an error that names the part") {
  pl::host_backend backend;
  pl::pinned_buffer<float, pl::host_backend> memory(backend.pinned(), 30, pl::tag::gradients);
  std::vector<pl::gradient_part> parts(3);
  for (std::size_t i = 0; i < 3; ++i) parts[i].home = {memory.all().sub(static_cast<index_t>(i) * 10, 10)};
  using store_type = pl::gradient_accumulators<pl::host_backend>;
  CHECK_THROWS_WITH_AS(store_type(backend, parts, 5), doctest::Contains("slots must be 1, 2, 3 or 4, got 5"),
                       pl::config_error);
  CHECK_THROWS_AS(store_type::working_set_of(parts, 0), pl::config_error);
  store_type store(backend, parts);
  auto stream = backend.make_stream("main");
  const pl::drain<pl::host_backend> before_they_go(backend, stream);
  store.begin_step();
  CHECK_THROWS_WITH_AS(store.is_final(stream, 1), doctest::Contains("part 1 is final but was not acquired"),
                       pl::config_error);
  CHECK_THROWS_WITH_AS(store.acquire(stream, 3), doctest::Contains("part 3 does not exist"),
                       pl::config_error);
  CHECK_THROWS_WITH_AS(store.piece(2), doctest::Contains("part 2 is not on the device"), pl::config_error);
  store.acquire(stream, 0);
  CHECK_THROWS_WITH_AS(store.acquire(stream, 0), doctest::Contains("part 0 is acquired twice"),
                       pl::config_error);
  CHECK_THROWS_WITH_AS(store.finish(stream), doctest::Contains("part 0 is still in use"), pl::config_error);
  store.acquire(stream, 1);
  store.prefetch(2); // no slot is free: nothing happens
  CHECK_THROWS_WITH_AS(store.acquire(stream, 2), doctest::Contains("part 2 finds no slot"), pl::config_error);
  store.is_final(stream, 0);
  store.acquire(stream, 2);
  store.begin_step(); // as after a step that failed
  for (int i = 0; i < 3; ++i) {
    store.acquire(stream, i);
    store.is_final(stream, i);
  }
  store.finish(stream);
}
