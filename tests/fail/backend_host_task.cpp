// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs host_task(on<stream>, function, tagged arguments...)
// control: the archetype; here a task without arguments
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_host_task>>());
