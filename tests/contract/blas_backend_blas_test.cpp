// SPDX-License-Identifier: Apache-2.0
//
// The host backend that multiplies with a BLAS, held to the backend contract.
#include "backend_contract.hpp"

#include <plateau/blas/blas_gemm.hpp>
#include <plateau/host/backend.hpp>

#include <doctest/doctest.h>

#include <memory>

using blas_backend = plateau::basic_host_backend<plateau::blas_gemm>;

TEST_CASE("a host backend with a BLAS") {
  openblas_set_num_threads(1);
  backend_contract::everything<blas_backend>({[] { return std::make_unique<blas_backend>(); }});
}
