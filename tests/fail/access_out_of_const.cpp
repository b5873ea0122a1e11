// SPDX-License-Identifier: Apache-2.0
// expect: plateau: out(v) of a view of const
// control: in(v) is what a view of const is good for
#include <plateau/access.hpp>

namespace pl = plateau;

void issue(pl::view<const float> v) {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  pl::in(v);
#else
  pl::out(v);
#endif
}
