// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs copy(on<stream>, in(from), out(to)) for views and tiles, between device and host in every direction
// control: the archetype; here copies stay in one space
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::copies_within_one_space>>());
