// SPDX-License-Identifier: Apache-2.0
//
// A staging pipeline on threads: the bits of the same update without it, for every bucket size, number of
// slots and set of fields; its memory to the byte; and what is left of the state when something fails.
#include "support/counted_new.hpp"
#include "support/faulty_backend.hpp"
#include "support/process_memory.hpp"
#include "support/staging_case.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::staging_compute, pl::bucket;
using support::staging_case, support::staging_fields, support::staging_values, support::all_staging_fields;
using backend_type = pl::host_backend;
using pipeline_type = support::all_fields_pipeline<backend_type>;

namespace {

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }
template <class Error, class F> std::string thrown(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Everything of a rank, made once.
template <class Backend> struct setting {
  using pipeline_of = support::all_fields_pipeline<Backend>;
  Backend backend;
  typename Backend::stream stream;
  support::staging_rig<Backend> rig;
  pl::workspace<Backend> space;
  pipeline_of pipeline;
  pl::bucket_plan plan;

  explicit setting(const staging_case& c)
      : stream(backend.make_stream("main")), rig(backend, stream, c.elements()),
        space(backend, pipeline_of::working_set_of(c.shape)), pipeline(backend, space, c.shape),
        plan(c.plan()) {}
};

} // namespace

TEST_CASE("a process grows by the slots that were promised, and 2% at most") {
  if (support::bytes_of_process("VmHWM") == 0) {
    MESSAGE("left out: nobody says what the process holds");
    return;
  }
  using incoming = pl::staging_pipeline<backend_type, pl::staged<std::uint32_t, pl::flow::in>>;
  constexpr index_t most = index_t{96} << 20;
  backend_type backend;
  auto stream = backend.make_stream("main");
  // Three buckets that nobody has written: reading such memory takes none.
  const pl::pinned_buffer<std::uint32_t, backend_type> slab(backend.pinned(), 3 * most, pl::tag::other);
  const pl::staging_shape shape{most, 3};
  pl::workspace<backend_type> space(backend, incoming::working_set_of(shape));
  incoming pipeline(backend, space, shape);
  const std::size_t promised = space.device_bytes(), at_first = support::bytes_of_process("VmRSS");
  CHECK(promised == std::size_t{1152} << 20);
  for (int step = 0; step < 2; ++step)
    pipeline.run(stream, pl::bucket_plan::elementwise(3 * most, most), incoming::slabs(slab.all()),
                 [](auto&, const bucket&, auto) {});
  backend.wait(backend.record(stream));
  const std::size_t seen = support::bytes_of_process("VmHWM") - at_first;
  CHECK(seen <= promised + promised / 50);
  CHECK(seen >= promised - promised / 20); // it was all needed, and seen
}

TEST_CASE("the bits of the update at once, whatever the buckets and the slots") {
  for (const index_t n : {0, 1, 15, 16, 17, 100, 129, 1025})
    for (const index_t most : {1, 3, 16, 64, 1025}) {
      if (n / most > 200) continue;
      for (int slots = 1; slots <= 4; ++slots)
        for (const staging_fields which : all_staging_fields)
          for (const auto compute : {staging_compute::own_stream, staging_compute::callers_stream}) {
            if (which != staging_fields::all && (n != 129 || most != 16)) continue;
            staging_case c = staging_case::of(n, most, slots);
            c.shape.compute = compute;
            CAPTURE(n);
            CAPTURE(most);
            CAPTURE(slots);
            backend_type backend;
            CHECK(support::run_staging(c, backend, which) == support::staged_at_once(c, which));
          }
    }
  staging_case c = staging_case::of(0, 300, 2);
  c.tensors = {300, 0, 1, 299, 17, 250, 34, 7};
  c.whole = true;
  backend_type backend;
  CHECK(support::run_staging(c, backend, staging_fields::all) ==
        support::staged_at_once(c, staging_fields::all));
}

TEST_CASE("device bytes are slots x bucket elements x bytes of an element, whatever the state") {
  static_assert(pipeline_type::streamed_bytes_per_element == 4 + 4 + 8 + 2);
  for (int slots = 1; slots <= 4; ++slots) {
    pl::staging_shape s{256 * 5, slots};
    CHECK(pipeline_type::working_set_of(s).device_bytes() == static_cast<std::size_t>(slots) * 256 * 5 * 18);
    CHECK(pipeline_type::working_set_of(s).pinned_bytes() == 0);
    // In between, each part of a slot is rounded up to 256 bytes.
    s.bucket_elements = 1283;
    const std::size_t exact = static_cast<std::size_t>(slots) * 1283 * 18;
    const std::size_t rounded = pipeline_type::working_set_of(s).device_bytes();
    CHECK(rounded == static_cast<std::size_t>(slots) * (5376 + 5376 + 10496 + 2816));
    CHECK(rounded - exact < static_cast<std::size_t>(slots) * 4 * 256);
  }
  // By default an eighth of the state at most, and 32 MiB a bucket.
  for (const index_t n : {index_t{1} << 20, index_t{1} << 31, index_t{35} << 30}) {
    const pl::staging_shape s = pipeline_type::shape_for(n);
    CHECK(pipeline_type::working_set_of(s).device_bytes() <= static_cast<std::size_t>(n) * 18 / 8);
    CHECK(static_cast<std::size_t>(s.bucket_elements) * 18 <= pl::usual_bucket_bytes);
  }
  CHECK(pipeline_type::shape_for(0).bucket_elements == 1);
  CHECK(pipeline_type::shape_for(1000, 180).bucket_elements == 10);
  // More than any machine has: the arithmetic holds, and what 64 bits do not hold is refused.
  const pl::staging_shape huge{index_t{1} << 50, 4};
  CHECK(pipeline_type::working_set_of(huge).device_bytes() == std::size_t{4} * 18 << 50);
  CHECK_THROWS_AS(pipeline_type::working_set_of({index_t{1} << 60, 4}), pl::config_error);
}

TEST_CASE("the promise is tight: full buckets touch all of it") {
  const staging_case c = staging_case::of(5003, 300, 3);
  setting<backend_type> on(c);
  const auto bytes = static_cast<index_t>(on.space.device_bytes());
  unsigned char* memory = nullptr;
  {
    pl::working_set all(pl::tag::other);
    all.add("all", pl::memory_kind::device, on.space.device_bytes());
    auto open = on.space.open(all);
    const auto whole = open.template device<unsigned char>(bytes);
    on.backend.launch(on.stream, pl::elements{bytes}, pl::fill<unsigned char>{0xa5}, pl::out(whole));
    memory = whole.p;
  }
  on.rig.step(on.pipeline, on.plan, 0);
  on.backend.wait(on.backend.record(on.stream));
  index_t run = 0, longest = 0;
  for (index_t i = 0; i < bytes; ++i) {
    run = memory[i] == 0xa5 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  CHECK(longest <= 256);
}

TEST_CASE("O14: after construction nothing is allocated, no stream is made and the host waits for nothing") {
  for (const auto compute : {staging_compute::own_stream, staging_compute::callers_stream})
    for (const index_t n : {600, 60000}) {
      staging_case c = staging_case::of(n, 300, 3);
      c.shape.compute = compute;
      setting<backend_type> on(c);
      on.rig.step(on.pipeline, on.plan, 0);
      on.backend.wait(on.backend.record(on.stream));
      const std::uint64_t before = counted_new::calls.load();
      const std::uint64_t of_device = on.backend.device().meter().allocations(),
                          of_pinned = on.backend.pinned().meter().allocations();
      const pl::counters work = on.backend.counters();
      for (std::uint32_t step = 1; step < 4; ++step) on.rig.step(on.pipeline, on.plan, step);
      on.backend.wait(on.backend.record(on.stream));
      CHECK(counted_new::calls.load() == before);
      CHECK(on.backend.device().meter().allocations() == of_device);
      CHECK(on.backend.pinned().meter().allocations() == of_pinned);
      const pl::counters made = on.backend.counters() - work;
      CHECK(made.host_round_trips == 0);
      CHECK(made.copied_bytes == static_cast<std::uint64_t>(3 * n) * (4 + 4 + 8 + 4 + 8 + 2));
    }
}

TEST_CASE("progress comes bucket by bucket, when the bucket's work is enqueued") {
  const staging_case c = staging_case::of(70, 20, 2);
  setting<backend_type> on(c);
  std::vector<index_t> seen;
  index_t begun = 0;
  on.rig.step(
      on.pipeline, on.plan, 0,
      [&](const bucket& b) {
        CHECK(begun == b.index + 1);
        seen.push_back(b.first);
      },
      [&](const bucket& b) { CHECK(begun++ == b.index); });
  CHECK(seen == std::vector<index_t>{0, 20, 40, 60});
}

TEST_CASE("bad input is refused with its numbers, and nothing has changed") {
  const staging_case c = staging_case::of(100, 30, 2);
  setting<backend_type> on(c);
  const auto refused = [&](auto f) {
    const std::string text = thrown<pl::config_error>(f);
    CHECK(text != "");
    return text;
  };
  const auto step = [&](const pl::bucket_plan& plan) { on.rig.step(on.pipeline, plan, 0); };
  std::string text = refused([&] { step(pl::bucket_plan::elementwise(100, 31)); });
  CHECK(has(text, "a bucket of 31 elements"));
  CHECK(has(text, "a slot holds 30"));
  text = refused([&] { step(pl::bucket_plan::elementwise(101, 30)); });
  CHECK(has(text, "the slab of field 0 has 100 elements, but the plan is of 101"));
  text = refused([&] { step(pl::bucket_plan::elementwise(0, 30)); }); // also where no bucket is
  CHECK(has(text, "has 100 elements, but the plan is of 0"));
  text = refused([&] { pipeline_type::shape_for(100, 17); });
  CHECK(has(text, "a bucket of 17 bytes is smaller than one element of all streamed fields, which has 18"));
  text = refused([&] { pipeline_type::shape_for(100, 1000, 5); });
  CHECK(has(text, "slots must be 1, 2, 3 or 4, got 5"));
  text = refused([&] { pipeline_type(on.backend, on.space, {65, 2}); });
  CHECK(has(text, "2 slots of 65 elements need 4096 device bytes, but the workspace has"));
  text = refused([&] { pipeline_type(on.backend, on.space, {30, 0}); });
  CHECK(has(text, "slots must be 1, 2, 3 or 4, got 0"));
  staging_values expected(100);
  for (std::uint32_t& e : expected.e) e += 3; // by the caller's stream, in three calls
  CHECK(on.rig.values() == expected);
}

TEST_CASE("a throwing update or progress: buckets that went are whole, the others untouched") {
  struct stop {};
  for (const auto compute : {staging_compute::own_stream, staging_compute::callers_stream})
    for (int slots = 1; slots <= 4; ++slots)
      for (index_t at = 0; at < 8; ++at)
        for (const bool in_update : {true, false}) {
          staging_case c = staging_case::of(75, 10, slots);
          c.shape.compute = compute;
          setting<backend_type> on(c);
          const auto fail = [&](const bucket& b) {
            if (b.index == at) throw stop{};
          };
          const auto nothing = [](const bucket&) {};
          if (in_update)
            CHECK_THROWS_AS(on.rig.step(on.pipeline, on.plan, 0, nothing, fail), stop);
          else
            CHECK_THROWS_AS(on.rig.step(on.pipeline, on.plan, 0, fail), stop);
          staging_values expected(75);
          const index_t whole = std::min<index_t>(75, 10 * (in_update ? at : at + 1));
          expected.update(staging_fields::all, 0, 0, whole);
          CHECK(on.rig.values() == expected);
          on.rig.step(on.pipeline, on.plan, 1); // and it goes on
          expected.update(staging_fields::all, 1, 0, 75);
          CHECK(on.rig.values() == expected);
        }
}

TEST_CASE("the state is whole when the pipeline goes with the exception") {
  const staging_case c = staging_case::of(75, 10, 3);
  backend_type backend;
  auto stream = backend.make_stream("main");
  support::staging_rig<backend_type> rig(backend, stream, 75);
  try {
    pl::workspace<backend_type> space(backend, pipeline_type::working_set_of(c.shape));
    pipeline_type pipeline(backend, space, c.shape);
    rig.step(pipeline, c.plan(), 0, [](const bucket& b) {
      if (b.index == 4) throw std::runtime_error("enough");
    });
  } catch (const std::runtime_error&) {
  }
  staging_values expected(75);
  expected.update(staging_fields::all, 0, 0, 50);
  CHECK(rig.values() == expected);
}

TEST_CASE("an operation that fails leaves every bucket as it was or whole, but a failing copy its own") {
  using support::fault_plan;
  const staging_case c = staging_case::of(75, 10, 2);
  std::int64_t operations = 1;
  for (const auto where : {fault_plan::place::host, fault_plan::place::stream})
    for (std::int64_t k = 0; k < operations; ++k) {
      staging_values old(75), fresh(75);
      fresh.update(staging_fields::all, 0, 0, 75);
      support::faulty_backend backend;
      auto stream = backend.make_stream("main");
      // The slabs outlive the streams, as a program's state does.
      pl::pinned_buffer<std::uint32_t, backend_type> a(backend.backend_type::pinned(), 75, pl::tag::other),
          b(backend.backend_type::pinned(), 75, pl::tag::other);
      pl::pinned_buffer<std::uint64_t, backend_type> d(backend.backend_type::pinned(), 75, pl::tag::other);
      pl::pinned_buffer<std::uint16_t, backend_type> o(backend.backend_type::pinned(), 75, pl::tag::other);
      pl::device_buffer<std::uint32_t, backend_type> e(backend.backend_type::device(), 75, pl::tag::other);
      support::first_values{100}(a.all());
      std::memcpy(b.data(), old.b.data(), b.bytes());
      std::memcpy(d.data(), old.c.data(), d.bytes());
      std::memcpy(o.data(), old.d.data(), o.bytes());
      for (std::size_t i = 0; i < 75; ++i) e.data()[i] = old.e[i] + 1;
      using faulty_pipeline = support::all_fields_pipeline<support::faulty_backend>;
      pl::workspace<support::faulty_backend> space(backend, faulty_pipeline::working_set_of(c.shape));
      std::optional<faulty_pipeline> pipeline(std::in_place, backend, space, c.shape);
      const pl::drain<support::faulty_backend> before_they_go(backend, stream);
      backend.plan().seen.clear();
      backend.plan().at = k, backend.plan().where = where;
      bool failed = false;
      try {
        pipeline->run(stream, c.plan(), {a.all(), b.all(), d.all(), o.all(), e.all()},
                      [&](auto& s, const bucket& bk, auto va, auto vb, auto vc, auto vd, auto ve) {
                        backend.launch(s, pl::elements{bk.elements}, support::mix_state{bk.first, 0},
                                       pl::in(va), pl::inout(vb), pl::inout(vc), pl::out(vd), pl::inout(ve));
                      });
        backend.wait(backend.record(stream));
      } catch (const pl::backend_error& error) {
        failed = true;
        CHECK(has(error.what(), fault_plan::text));
      }
      backend.plan().at = -1;
      pipeline.reset(); // where the caller's stream failed, copies may still run
      CAPTURE(k);
      const auto& seen = backend.plan().seen;
      operations = std::max(operations, static_cast<std::int64_t>(seen.size()));
      CHECK(failed == (k < static_cast<std::int64_t>(seen.size())));
      // Buckets that are neither old nor new.
      int torn = 0;
      for (index_t i = 0; i < c.plan().buckets(); ++i) {
        const bucket k_th = c.plan().at(i);
        const auto equal = [&](const staging_values& v) {
          const auto first = static_cast<std::size_t>(k_th.first),
                     n = static_cast<std::size_t>(k_th.elements);
          return std::memcmp(b.data() + first, v.b.data() + first, n * 4) == 0 &&
                 std::memcmp(d.data() + first, v.c.data() + first, n * 8) == 0 &&
                 std::memcmp(o.data() + first, v.d.data() + first, n * 2) == 0;
        };
        torn += equal(old) || equal(fresh) ? 0 : 1;
      }
      const bool of_copy = k < static_cast<std::int64_t>(seen.size()) &&
                           std::string(seen[static_cast<std::size_t>(k)]) == "copy";
      CHECK(torn <= (of_copy ? 1 : 0));
    }
  CHECK(operations > 100);
}
