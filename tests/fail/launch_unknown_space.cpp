// SPDX-License-Identifier: Apache-2.0
// expect: plateau: kernels and products of this backend cannot reach the memory space of this view: copy to device memory first, or specialise plateau::accessible_from for the backend
// control: the host backend reaches host memory; here a space that nobody knows
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

void issue(pl::host_backend& b, pl::host_backend::stream& s, pl::view<float, space> v) {
  b.launch(
      s, pl::elements{v.n}, [](pl::index_t i, pl::view<float, space> to) { to[i] = 0; }, pl::out(v));
}
