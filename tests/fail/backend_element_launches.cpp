// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs launch(on<stream>, elements{n}, kernel, arguments...)
// control: the archetype; here rows only
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::launches_no_elements>>());
