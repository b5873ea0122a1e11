// SPDX-License-Identifier: Apache-2.0
//
// A staging pipeline on the CUDA backend, on the stand-in: where operations of streams come late, and where
// memory cannot be pinned.
#include "stand_in_tools.hpp"
#include "support/staging_case.hpp"

#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pl = plateau;
namespace cs = stand_in::cs;
using pl::index_t, pl::staging_compute;
using support::staging_case, support::staging_fields;

TEST_CASE("the bits of the update at once, where operations of streams come late") {
  for (const staging_fields which : support::all_staging_fields)
    for (const auto compute : {staging_compute::own_stream, staging_compute::callers_stream})
      for (int slots = 1; slots <= 4; ++slots) {
        cs::options o;
        o.seed = static_cast<std::uint64_t>(slots);
        o.delay_microseconds = 50;
        const stand_in::with_settings late(o);
        staging_case c = staging_case::of(300, 41, slots);
        c.shape.compute = compute;
        pl::cuda_backend backend;
        CHECK(support::run_staging(c, backend, which) == support::staged_at_once(c, which));
      }
}
TEST_CASE("O13: what cannot be pinned says how much and of which budget, and leaves no error behind") {
  pl::cuda_backend backend("rank 2");
  const pl::pinned_buffer<float, pl::cuda_backend> other(backend.pinned(), 10, pl::tag::other);
  backend.pinned().meter().limit(5000);
  cs::fail_call("cudaMallocHost", 1, cudaErrorMemoryAllocation);
  std::string text;
  try {
    const pl::pinned_buffer<float, pl::cuda_backend> slab(backend.pinned(), 1000, pl::tag::optimizer);
  } catch (const pl::backend_error& e) {
    text = e.what();
  }
  CHECK(text.find("no 4000 bytes of pinned host memory") != std::string::npos);
  CHECK(text.find("40 bytes of host memory are held, of a limit of 5000") != std::string::npos);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(backend.pinned().meter().current() == 40);
  backend.pinned().meter().limit(1 << 20);
  const staging_case c = staging_case::of(300, 41, 3); // and what comes next works
  CHECK(support::run_staging(c, backend, staging_fields::all) == support::staged_at_once(c));
}
