// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs group_by_key(on<stream>, in(ids), out(order), out(offsets), scratch) and static group_by_key_scratch_bytes(n, keys)
// control: the archetype; here 64-bit ids only
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::groups_wide_keys_only>>());
