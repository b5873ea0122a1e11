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

void issue(pl::host_backend& b, pl::host_backend::stream& s, pl::tile<float, space> t) {
  b.gemm(s, pl::transpose::no, pl::transpose::no, 1, pl::in(t), pl::in(t), 0, pl::out(t), {});
}
