// SPDX-License-Identifier: Apache-2.0
//
// Exact bytes with a vendor's matrix products, whose scratch is another one.
#include "dry_run_peaks.hpp"

#include <plateau/blas/blas_gemm.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

using blas_backend = plateau::basic_host_backend<plateau::blas_gemm>;

TEST_CASE("exact bytes with BLAS") {
  openblas_set_num_threads(1);
  test::check_grid<plateau::bfloat16, blas_backend>(4, 6);
}
