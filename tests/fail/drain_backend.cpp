// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs event record(stream&)
// control: the archetype; here nothing can be recorded
#include <fail/support/near_misses.hpp>

#include <plateau/drain.hpp>

template class plateau::drain<near_misses::subject<near_misses::no_record>>;
