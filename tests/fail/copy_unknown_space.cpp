// SPDX-License-Identifier: Apache-2.0
// expect: plateau: copies of this backend reach device_space and host_space, and what plateau::accessible_from is specialised for; this view is in another space
// control: from host memory; here from a space that nobody knows
#include <plateau/host/backend.hpp>

namespace pl = plateau;

struct elsewhere {
  static constexpr const char* name = "elsewhere";
};
#ifdef PLATEAU_FAIL_TEST_CONTROL
using space = pl::host_space;
#else
using space = elsewhere;
#endif

void issue(pl::host_backend& b, pl::host_backend::stream& s, pl::view<float, space> from,
           pl::view<float> to) {
  b.copy(s, pl::in(from), pl::out(to));
}
