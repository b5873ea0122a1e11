// SPDX-License-Identifier: Apache-2.0
// expect: plateau communicator: needs exchange(on<stream>, send_list, receive_list, const char* what)
// control: the archetype; here exchanges take spans only, nothing in braces
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(
    plateau::check_communicator<near_misses::communicator_subject<near_misses::exchanges_spans_only>,
                                archetypes::archetype_backend>());
