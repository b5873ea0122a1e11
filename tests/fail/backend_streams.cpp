// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs stream make_stream(const char* name)
// control: the archetype; here streams without a name
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::anonymous_streams>>());
