// SPDX-License-Identifier: Apache-2.0
//
// A staging pipeline under the order check of the dry run, whatever the slots and buckets: nothing is
// unordered, every wait that is left out is missed, an operation that fails leaks nothing; and its bits under
// any order of operations, drawn from seeds.
#include "support/staging_case.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::staging_compute;
using support::staging_case, support::staging_fields, support::all_staging_fields;
using dry = pl::dry_run<pl::host_backend>;

namespace {

std::vector<staging_case> cases() {
  std::vector<staging_case> all;
  for (const staging_compute compute : {staging_compute::own_stream, staging_compute::callers_stream})
    for (int slots = 1; slots <= 4; ++slots) {
      all.push_back(staging_case::of(70, 10, slots)); // even
      all.push_back(staging_case::of(63, 10, slots)); // with a tail
      all.push_back(staging_case::of(10, 10, slots)); // one bucket
      all.push_back(staging_case::of(0, 10, slots));  // none
      staging_case c = staging_case::of(0, 12, slots);
      c.tensors = {5, 0, 7, 12, 1, 0, 11, 4, 0};
      c.whole = true;
      all.push_back(c);
      for (std::size_t i = all.size() - 5; i < all.size(); ++i) all[i].shape.compute = compute;
    }
  return all;
}
struct outcome {
  std::vector<std::string> findings;
  std::uint64_t waits = 0, operations = 0;
  std::string dropped, failed;
  std::size_t left = 0;
};
outcome dry_outcome(const staging_case& c, staging_fields which, const pl::dry_options& options = {}) {
  outcome o;
  dry backend("", options);
  try {
    support::run_staging(c, backend, which);
  } catch (const pl::error& e) {
    o.failed = e.what();
  }
  const pl::dry::recorder& r = backend.recorder();
  for (const auto& f : r.findings()) o.findings.push_back(r.text_of(f));
  o.waits = r.waits();
  o.operations = r.operations();
  if (r.dropped()) o.dropped = r.dropped()->text();
  o.left = backend.device().meter().current() + backend.pinned().meter().current();
  return o;
}
// How many waits a run has, as docs/staging.md counts them.
index_t waits_of_a_run(const staging_case& c, staging_fields which) {
  const index_t n = c.plan().buckets(), again = std::max<index_t>(0, n - c.shape.slots);
  const bool own = c.shape.compute == staging_compute::own_stream;
  if (n == 0) return 0;
  switch (which) {
  case staging_fields::all: // the first; each bucket's two; a slot's own; the last
    return 1 + 2 * n + again + 1;
  case staging_fields::in_alone:
    return 1 + n + again + (own ? 1 : 0);
  case staging_fields::out_alone:
    return (own ? 1 : 0) + n + again + 1;
  case staging_fields::resident_alone:
    break;
  }
  return own ? 2 : 0;
}

} // namespace

TEST_CASE("nothing is unordered, and every wait that is left out is missed") {
  for (const staging_fields which : all_staging_fields)
    for (const staging_case& c : cases()) {
      CAPTURE(static_cast<int>(which));
      CAPTURE(c.shape.slots);
      CAPTURE(c.elements());
      const outcome whole = dry_outcome(c, which);
      CHECK(whole.failed == "");
      for (const std::string& each : whole.findings) FAIL_CHECK(each);
      index_t of_pipeline = 0;
      for (std::uint64_t k = 0; k < whole.waits; ++k) {
        pl::dry_options options;
        options.drop_wait = k;
        const outcome with = dry_outcome(c, which, options);
        REQUIRE(with.failed == "");
        if (with.dropped.find("staging_pipeline.hpp") == std::string::npos) continue;
        ++of_pipeline;
        CAPTURE(with.dropped);
        CHECK_FALSE(with.findings.empty());
      }
      CHECK(of_pipeline == c.steps * waits_of_a_run(c, which));
    }
}

TEST_CASE("an operation that fails, whichever it is, comes out, and nothing leaks") {
  for (const staging_fields which : all_staging_fields) {
    const staging_case c = staging_case::of(63, 10, 2);
    const outcome whole = dry_outcome(c, which);
    REQUIRE(whole.operations > 20);
    for (std::uint64_t k = 0; k < whole.operations; ++k) {
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      const outcome with = dry_outcome(c, which, options);
      CHECK(with.failed.find("operation " + std::to_string(k) + " fails, as the dry run was told") !=
            std::string::npos);
      CHECK(with.left == 0);
      for (const std::string& each : with.findings) FAIL_CHECK(each);
    }
  }
}

TEST_CASE("an update that throws in the middle of a bucket: the slots may go with the exception") {
  using pipeline_type = pl::staging_pipeline<dry, pl::staged<float, pl::flow::out>>;
  for (const staging_compute compute : {staging_compute::own_stream, staging_compute::callers_stream}) {
    dry backend;
    auto stream = backend.make_stream("main");
    const pl::pinned_buffer<float, dry> slab(backend.pinned(), 40, pl::tag::optimizer);
    bool thrown = false;
    try {
      const pl::staging_shape shape{10, 2, compute};
      pl::workspace<dry> space(backend, pipeline_type::working_set_of(shape));
      pipeline_type pipeline(backend, space, shape);
      pipeline.run(stream, pl::bucket_plan::elementwise(40, 10), {slab.all()},
                   [&](auto& s, const pl::bucket& b, pl::view<float> part) {
                     backend.launch(s, pl::elements{part.n}, pl::fill<float>{1}, pl::out(part));
                     if (b.index == 1) throw std::runtime_error("enough");
                   });
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    CHECK(thrown);
    for (const auto& f : backend.recorder().findings()) FAIL_CHECK(backend.recorder().text_of(f));
  }
}

TEST_CASE("the same bits under any order of operations, for every number of slots") {
  for (const staging_fields which : all_staging_fields)
    for (const staging_compute compute : {staging_compute::own_stream, staging_compute::callers_stream})
      for (int slots = 1; slots <= 4; ++slots) {
        staging_case c = staging_case::of(37, 5, slots);
        c.shape.compute = compute;
        const support::staging_values expected = support::staged_at_once(c, which);
        for (std::uint64_t seed = 0; seed < (which == staging_fields::all ? 60 : 15); ++seed) {
          CAPTURE(seed);
          pl::seeded_backend backend(seed);
          CHECK(support::run_staging(c, backend, which) == expected);
        }
      }
}
TEST_CASE("every operation keeps the word of its tags") {
  for (const staging_fields which : all_staging_fields)
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const staging_case c = staging_case::of(37, 5, 2);
      pl::audited_backend backend(seed);
      CHECK(support::run_staging(c, backend, which) == support::staged_at_once(c, which));
    }
}
