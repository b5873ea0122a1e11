// SPDX-License-Identifier: Apache-2.0
//
// The audited backend, held to the backend contract: what passes there does what its tags say.
#include "backend_contract.hpp"

#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <memory>

namespace pl = plateau;

TEST_CASE("audited_backend") {
  backend_contract::everything<pl::audited_backend>(
      {[] { return std::make_unique<pl::audited_backend>(std::uint64_t{5}); }, false});
}
