// SPDX-License-Identifier: Apache-2.0
// expect: a raw pointer, an untagged view or another tensor hides an access
// control: the pointer becomes a tagged view
#include <plateau/access.hpp>

namespace pl = plateau;

float first(pl::view<float> v) { return v[0]; }

void issue(float* p) {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  first(pl::unwrap(pl::inout(pl::view<float>{p, 1})));
#else
  first({pl::unwrap(p), 1});
#endif
}
