// SPDX-License-Identifier: Apache-2.0
//
// A traced backend does what a backend must do, and its operations are those of the backend that it traces.
#include "backend_contract.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/trace/traced_backend.hpp>

#include <doctest/doctest.h>

#include <memory>

using traced_host_backend = plateau::traced_backend<plateau::host_backend>;

TEST_CASE("a traced host backend") {
  backend_contract::subject<traced_host_backend> subject{[] {
    static plateau::trace_recorder recorder(0);
    return std::make_unique<traced_host_backend>(recorder, "rank 0");
  }};
  subject.steady_state_is_free = false; // the trace grows
  backend_contract::everything(subject);
}
