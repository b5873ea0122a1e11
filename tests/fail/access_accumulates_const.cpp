// SPDX-License-Identifier: Apache-2.0
// expect: plateau: accumulates(v) of a view of const
// control: without const
#include <plateau/access.hpp>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using counted = int;
#else
using counted = const int;
#endif

void issue(pl::view<counted> v) { pl::accumulates(v); }
