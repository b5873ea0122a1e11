// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs launch(on<stream>, rows{n}, kernel, arguments...)
// control: the archetype; here elements only
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::launches_no_rows>>());
