// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs fetch(const event&, in(pinned view), span into, label, dry answer)
// control: the archetype; here no dry answer
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::fetches_without_dry_answer>>());
