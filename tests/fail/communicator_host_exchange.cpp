// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs host_exchange(span<const int64_t> mine, span<int64_t> all, const char* what)
// control: the archetype; here host exchanges have no name
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(
    plateau::check_communicator<near_misses::communicator_subject<near_misses::nameless_host_exchange>,
                                archetypes::archetype_backend>());
