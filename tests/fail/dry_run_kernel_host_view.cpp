// SPDX-License-Identifier: Apache-2.0
// expect: plateau: kernels and products of this backend cannot reach the memory space of this view: copy to device memory first, or specialise plateau::accessible_from for the backend
// control: the model is the host backend, whose kernels reach host memory; here a machine whose do not
#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using model = pl::host_backend;
#else
struct model {
  static constexpr bool row_invariant = false;
  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(pl::transpose, pl::transpose, pl::index_t, pl::index_t, pl::index_t) {
    return 0;
  }
  static std::size_t group_by_key_scratch_bytes(pl::index_t, pl::index_t) { return 0; }
  static std::size_t exclusive_scan_scratch_bytes(pl::index_t) { return 0; }
};
#endif
using backend = pl::dry_run<model>;

void issue(backend& b, backend::stream& s, pl::view<float, pl::host_space> v) {
  b.launch(s, pl::elements{v.n}, pl::fill<float>{1}, pl::out(v));
}
