// SPDX-License-Identifier: Apache-2.0
//
// A staging pipeline on a GPU, by bits: every set of fields and number of slots, and a state of a few MB,
// whose copies overlap.
#include "support/staging_case.hpp"

#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

TEST_CASE("the bits of the update at once") {
  namespace pl = plateau;
  for (const support::staging_fields which : support::all_staging_fields)
    for (const auto compute : {pl::staging_compute::own_stream, pl::staging_compute::callers_stream})
      for (int slots = 1; slots <= 4; ++slots)
        for (const pl::index_t n : {0, 1, 300, 300000}) {
          support::staging_case c = support::staging_case::of(n, n < 1000 ? 41 : 20001, slots);
          c.shape.compute = compute;
          pl::cuda_backend backend;
          CHECK(support::run_staging(c, backend, which) == support::staged_at_once(c, which));
        }
}
