// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: host_memory needs a type space, void* allocate(bytes, alignment, tag), deallocate(p, bytes, alignment, tag) noexcept, meter& meter() and retire(p, bytes) noexcept: plateau::metered<R> has the last two
// control: the archetype; here pinned memory without a meter
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::unaccounted_host>>());
