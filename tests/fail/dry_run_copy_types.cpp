// SPDX-License-Identifier: Apache-2.0
// expect: plateau: copy: source and destination differ in element type
// control: floats to floats; here to integers
#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>

namespace pl = plateau;
using backend = pl::dry_run<pl::host_backend>;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using element = float;
#else
using element = int;
#endif

void issue(backend& b, backend::stream& s, pl::view<float> from, pl::view<element> to) {
  b.copy(s, pl::in(from), pl::out(to));
}
