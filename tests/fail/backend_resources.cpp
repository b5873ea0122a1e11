// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs device_memory& device() of device_space, host_memory& pinned() of host_space and adopt(const void*, bytes, stream&)
// control: the archetype; here adopt takes no stream
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_adopt>>());
