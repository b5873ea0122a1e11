// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs wait(stream&, const event&) and wait(const event&)
// control: the archetype; here streams cannot wait
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::host_waits_only>>());
