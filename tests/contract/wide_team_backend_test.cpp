// SPDX-License-Identifier: Apache-2.0
//
// The host backend whose kernels run wide: each row by eight real threads with real barriers, each element
// launch spread over them. What a GPU would show, and the thread sanitizer sees.
#include "backend_contract.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/host/wide_team.hpp>

#include <doctest/doctest.h>

#include <memory>

using wide_backend = plateau::basic_host_backend<plateau::block_gemm, plateau::host::wide_runner>;

TEST_CASE("a host backend of wide teams") {
  backend_contract::subject<wide_backend> subject{[] { return std::make_unique<wide_backend>(); }};
  subject.steady_state_is_free = false; // every launch starts its threads
  backend_contract::everything(subject);
}
