// SPDX-License-Identifier: Apache-2.0
//
// What broke in other systems that keep an optimizer's state in host memory, report by report, as far as it
// is the pipeline's; what is the update's is with the update.
#include "support/staging_case.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/testing/seeded_backend.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace pl = plateau;
using pl::index_t, pl::staging_compute;
using support::staging_case, support::staging_fields;
using dry = pl::dry_run<pl::host_backend>;
template <class Backend> using pipeline_of = support::all_fields_pipeline<Backend>;

namespace {

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

// Leaves out the waits of one stream for events of another, but for the first few.
class forgetful_backend : public pl::seeded_backend {
 public:
  using seeded_backend::seeded_backend;
  const char *who = "", *first_is = "";
  int spared = 0, forgotten = 0;

  using seeded_backend::wait;
  void wait(stream& s, const event& e) {
    if (s.name() == who && spared-- <= 0)
      ++forgotten;
    else
      seeded_backend::wait(s, e);
  }
};

// Records one event, the k-th of those that a stream is asked for, on another stream.
class mistaken_backend : public dry {
 public:
  using dry::dry;
  const char* who = "";
  stream* instead = nullptr;
  int at = -1, asked = 0;

  event record(stream& s) {
    return std::string(s.name()) == who && asked++ == at ? dry::record(*instead) : dry::record(s);
  }
};

// A machine that refuses.
struct no_memory {
  using space = pl::host_space;
  void* allocate(std::size_t, std::size_t, pl::tag) { throw pl::backend_error("nothing left"); }
  void deallocate(void*, std::size_t, std::size_t, pl::tag) noexcept {}
};

class counting_backend : public pl::host_backend {
 public:
  int streams = 0;
  stream make_stream(const char* called) {
    ++streams;
    return pl::host_backend::make_stream(called);
  }
};

} // namespace

TEST_CASE("O3: more than 2^31 elements all pass, by exact bytes and without 32-bit numbers") {
  const index_t n = (index_t{1} << 31) + 12345, most = index_t{100} << 20;
  dry backend;
  staging_case c = staging_case::of(n, most, 2);
  c.steps = 1;
  support::run_staging(c, backend, staging_fields::all);
  const std::uint64_t elements = static_cast<std::uint64_t>(n);
  // In, out, and what the test reads afterwards.
  CHECK(backend.counters().copied_bytes == elements * (16 + 14) + elements * (14 + 14 + 4));
  CHECK(backend.recorder().found() == 0);
}

TEST_CASE("O4: a slot that does not wait for its own copy out corrupts the state; the wait is there") {
  const staging_case c = staging_case::of(60, 5, 2);
  const auto expected = support::staged_at_once(c);
  int wrong = 0, forgotten = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    pl::seeded_backend whole(seed);
    CHECK(support::run_staging(c, whole, staging_fields::all) == expected);
    forgetful_backend backend(seed);
    backend.who = "staging in";
    backend.spared = 1; // for the caller
    wrong += support::run_staging<pipeline_of<forgetful_backend>>(c, backend) == expected ? 0 : 1;
    forgotten += backend.forgotten;
  }
  CHECK(forgotten > 0);
  CHECK(wrong > 0); // so the seeds above would have shown it
}

TEST_CASE("O5: an event of the wrong stream is found, whichever of them it is") {
  const staging_case c = staging_case::of(60, 10, 2);
  for (const char* who : {"staging in", "staging compute", "staging out"}) {
    CAPTURE(who);
    int records = 1;
    for (int k = 0; k < records; ++k) {
      CAPTURE(k);
      mistaken_backend backend;
      auto other = backend.make_stream("other");
      backend.who = who;
      backend.instead = &other;
      backend.at = k;
      support::run_staging<pipeline_of<mistaken_backend>>(c, backend);
      records = backend.asked;
      const std::size_t found = backend.recorder().found();
      // The way out of a bucket whose slot has no other one after it in the same step is waited for by
      // nobody, but for the last.
      const bool awaited = std::string(who) != "staging out" || k % 6 < 4 || k % 6 == 5;
      CHECK((found > 0) == awaited);
    }
    CHECK(records == 12);
  }
}

TEST_CASE("O10: no elements: nothing happens, with slabs that are null") {
  pl::host_backend backend;
  auto stream = backend.make_stream("main");
  using pipeline_type = pipeline_of<pl::host_backend>;
  const pl::staging_shape shape = pipeline_type::shape_for(0);
  pl::workspace<pl::host_backend> space(backend, pipeline_type::working_set_of(shape));
  pipeline_type pipeline(backend, space, shape);
  int calls = 0;
  const std::vector<index_t> empty{0, 0};
  for (const pl::bucket_plan& plan :
       {pl::bucket_plan(), pl::bucket_plan::elementwise(0, 1), pl::bucket_plan::whole_tensors(empty, 1)})
    pipeline.run(
        stream, plan, pipeline_type::slabs(), [&](auto&&...) { ++calls; }, [&](auto&&...) { ++calls; });
  CHECK(calls == 0);
  CHECK(backend.counters().copied_bytes == 0);
}

TEST_CASE("O12: 129.5 MB of a slab are charged as 129.5 MB") {
  dry backend;
  constexpr std::size_t bytes = 129'500'000;
  backend.pinned().meter().limit(bytes + 4096);
  const pl::pinned_buffer<float, dry> slab(backend.pinned(), bytes / 4, pl::tag::optimizer);
  CHECK(backend.pinned().meter().current(pl::tag::optimizer) == bytes);
  CHECK(backend.pinned().meter().peak().bytes == bytes);
}

TEST_CASE("O13: memory that is not there: bytes asked and budget are named, and the state is as it was") {
  pl::host_backend backend("rank 2");
  auto stream = backend.make_stream("main");
  support::staging_rig<pl::host_backend> rig(backend, stream, 1000);
  using pipeline_type = pipeline_of<pl::host_backend>;
  const std::size_t held = backend.pinned().meter().current();
  backend.pinned().meter().limit(held + 100);
  backend.device().meter().limit(10000);
  const auto refused = [](auto f) {
    try {
      f();
    } catch (const pl::budget_exceeded& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  std::string text = refused(
      [&] { pl::pinned_buffer<float, pl::host_backend>(backend.pinned(), 1000, pl::tag::optimizer); });
  CHECK(has(text, "rank 2: optimizer asked for 4000 bytes of host memory, but " + std::to_string(held) +
                      " of the limit of " + std::to_string(held + 100)));
  pl::staging_shape shape = pipeline_type::shape_for(1000, 9000, 2);
  text = refused([&] { pl::workspace<pl::host_backend>(backend, pipeline_type::working_set_of(shape)); });
  CHECK(has(text, "asked for " + std::to_string(pipeline_type::working_set_of(shape).device_bytes()) +
                      " bytes of device memory"));
  CHECK(has(text, "of the limit of 10000"));
  // A smaller attempt succeeds.
  shape = pipeline_type::shape_for(1000, 900, 2);
  pl::workspace<pl::host_backend> space(backend, pipeline_type::working_set_of(shape));
  pipeline_type pipeline(backend, space, shape);
  rig.step(pipeline, pl::bucket_plan::elementwise(1000, shape.bucket_elements), 0);
  staging_case c = staging_case::of(1000, 1);
  c.steps = 1;
  backend.device().meter().limit(1 << 20);
  backend.pinned().meter().limit(1 << 20);
  CHECK(rig.values() == support::staged_at_once(c));

  // What the machine itself refuses is named with what is held, and nothing of it is charged.
  text.clear();
  pl::metered<no_memory> memory("rank 2");
  memory.meter().limit(5000);
  try {
    memory.allocate(4000, 256, pl::tag::optimizer);
  } catch (const pl::backend_error& e) {
    text = e.what();
  }
  CHECK(has(text, "nothing left; 0 bytes of host memory are held, of a limit of 5000"));
  CHECK(memory.meter().current() == 0);
}

TEST_CASE("O14: streams are made once, in the constructor") {
  for (const auto compute : {staging_compute::own_stream, staging_compute::callers_stream}) {
    counting_backend backend;
    auto stream = backend.make_stream("main");
    support::staging_rig<counting_backend> rig(backend, stream, 100);
    pl::staging_shape shape{10, 3, compute};
    using pipeline_type = pipeline_of<counting_backend>;
    pl::workspace<counting_backend> space(backend, pipeline_type::working_set_of(shape));
    const int before = backend.streams;
    pipeline_type pipeline(backend, space, shape);
    const int made = compute == staging_compute::own_stream ? 3 : 2;
    CHECK(backend.streams == before + made);
    for (std::uint32_t step = 0; step < 50; ++step)
      rig.step(pipeline, pl::bucket_plan::elementwise(100, 10), step);
    CHECK(backend.streams == before + made);
  }
}
