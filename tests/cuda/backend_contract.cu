// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend, held to the backend contract on a GPU. Links with tests/doctest_main.cpp, cudart and
// cuBLAS.
#include "contract/backend_contract.hpp"

#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

#include <memory>

namespace pl = plateau;

// Device code cannot throw.
template <> inline constexpr bool backend_contract::kernels_throw<pl::cuda_backend> = false;

TEST_CASE("cuda_backend") {
  backend_contract::subject<pl::cuda_backend> subject{[] { return std::make_unique<pl::cuda_backend>(); }};
  subject.steady_state_is_free = false; // the libraries below take memory when they like
  backend_contract::everything(subject);
}
