// SPDX-License-Identifier: Apache-2.0
//
// The host backend, held to the backend contract: as it comes, and at every level of vectors that this
// machine has.
#include "backend_contract.hpp"

#include <plateau/host/backend.hpp>

#include <doctest/doctest.h>

#include <memory>

namespace pl = plateau;

namespace {
template <pl::cpu_level Level> std::unique_ptr<pl::host_backend> at_level() {
  return std::make_unique<pl::host_backend>("rank 0", pl::host::cpu_runner{Level});
}
} // namespace

TEST_CASE("host_backend") {
  backend_contract::everything<pl::host_backend>({[] { return std::make_unique<pl::host_backend>(); }});
}
TEST_CASE("host_backend without vectors") {
  backend_contract::everything<pl::host_backend>({at_level<pl::cpu_level::baseline>});
}
TEST_CASE("host_backend with AVX2" * doctest::skip(!pl::cpu_supports(pl::cpu_level::avx2))) {
  backend_contract::everything<pl::host_backend>({at_level<pl::cpu_level::avx2>});
}
TEST_CASE("host_backend with AVX-512" * doctest::skip(!pl::cpu_supports(pl::cpu_level::avx512))) {
  backend_contract::everything<pl::host_backend>({at_level<pl::cpu_level::avx512>});
}
