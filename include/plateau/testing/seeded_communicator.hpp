// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks that take turns: as thread_communicator, with the same operations, counts and
// errors, but which rank goes on and which transfer happens next is drawn from a seed. There is no deadline:
// when nothing can happen any more the group fails at once, and the error says who waits for whom. See
// run_seeded for how to start it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/testing/seeded_group.hpp>

namespace plateau::inline v0 {

using seeded_communicator = basic_communicator<testing::seeded_group>;

} // namespace plateau::inline v0
