// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs latch(failure), from any thread
// control: the archetype; here latch takes a text
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_communicator<near_misses::communicator_subject<near_misses::latches_texts>,
                                          archetypes::archetype_backend>());
