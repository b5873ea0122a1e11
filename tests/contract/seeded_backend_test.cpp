// SPDX-License-Identifier: Apache-2.0
//
// The seeded backend, held to the backend contract under a few seeds.
#include "backend_contract.hpp"

#include <plateau/testing/seeded_backend.hpp>

#include <doctest/doctest.h>

#include <memory>

namespace pl = plateau;

namespace {
// Orders allocate: operations are held back one by one.
template <std::uint64_t Seed> backend_contract::subject<pl::seeded_backend> seeded() {
  return {[] { return std::make_unique<pl::seeded_backend>(Seed); }, false};
}
} // namespace

TEST_CASE("seeded_backend") { backend_contract::everything(seeded<0>()); }
TEST_CASE("seeded_backend, seed 1") { backend_contract::everything(seeded<1>()); }
TEST_CASE("seeded_backend, seed 2") { backend_contract::everything(seeded<2>()); }
TEST_CASE("seeded_backend, seed 3") { backend_contract::everything(seeded<3>()); }
