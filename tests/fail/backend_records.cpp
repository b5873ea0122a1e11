// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs event record(stream&)
// control: the archetype; here record returns nothing
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_record>>());
