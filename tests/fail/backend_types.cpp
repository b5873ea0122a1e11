// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs the types stream (movable), event (movable, default constructible), device_memory and host_memory
// control: the archetype; here events without a default constructor
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_default_event>>());
