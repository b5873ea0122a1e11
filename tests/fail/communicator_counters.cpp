// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs counters() const, giving plateau::counters
// control: the archetype; here counters() gives nothing
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_communicator<near_misses::communicator_subject<near_misses::counts_nothing>,
                                          archetypes::archetype_backend>());
