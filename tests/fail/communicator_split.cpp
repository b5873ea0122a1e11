// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs split(int color, int key), giving its own type
// control: the archetype; here split gives nothing
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_communicator<near_misses::communicator_subject<near_misses::splits_into_nothing>,
                                          archetypes::archetype_backend>());
