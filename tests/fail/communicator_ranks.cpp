// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs int rank() const and int size() const
// control: the archetype; here rank() is a long
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_communicator<near_misses::communicator_subject<near_misses::rank_is_long>,
                                          archetypes::archetype_backend>());
