// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs exchange(on<stream>, send_list, receive_list, const char* what)
// control: the archetype; here exchanges have no name
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_communicator<near_misses::communicator_subject<near_misses::nameless_exchange>,
                                          archetypes::archetype_backend>());
