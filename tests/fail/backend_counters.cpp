// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs counters() const, giving plateau::counters
// control: the archetype; here counters() gives nothing
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_counters>>());
