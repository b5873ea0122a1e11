// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs exclusive_scan(on<stream>, in(values), out(sums), scratch) and static exclusive_scan_scratch_bytes(n)
// control: the archetype; here no scratch
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::scans_without_scratch>>());
