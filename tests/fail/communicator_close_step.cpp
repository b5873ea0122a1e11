// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs close_step() and abort(std::string cause)
// control: the archetype; here abort takes no cause
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(
    plateau::check_communicator<near_misses::communicator_subject<near_misses::aborts_without_cause>,
                                archetypes::archetype_backend>());
