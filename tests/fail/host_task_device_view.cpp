// SPDX-License-Identifier: Apache-2.0
// expect: plateau host task: its views are of host memory (host_space); copy device memory to pinned memory first
// control: the view is of host memory
#include <plateau/host/backend.hpp>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using space = pl::host_space;
#else
using space = pl::device_space;
#endif

void issue(pl::host_backend& b, pl::host_backend::stream& s, pl::view<float, space> v) {
  b.host_task(
      s, [](pl::view<float, space> to) { to[0] = 1; }, pl::out(v));
}
