// SPDX-License-Identifier: Apache-2.0
// expect: plateau: accumulates(v) is for integers only: a floating-point sum depends on its order
// control: integers
#include <plateau/access.hpp>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using counted = int;
#else
using counted = float;
#endif

void issue(pl::view<counted> v) { pl::accumulates(v); }
