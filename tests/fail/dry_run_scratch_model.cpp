// SPDX-License-Identifier: Apache-2.0
// expect: plateau dry_run: the scratch model is a backend, or has its static functions gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k), group_by_key_scratch_bytes(n, keys) and exclusive_scan_scratch_bytes(n), and row_invariant
// control: all four of them; here no exclusive_scan_scratch_bytes
#include <plateau/dry_run/backend.hpp>

namespace pl = plateau;

struct somewhere {
  static constexpr bool row_invariant = false;
  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(pl::transpose, pl::transpose, pl::index_t, pl::index_t, pl::index_t) {
    return 0;
  }
  static std::size_t group_by_key_scratch_bytes(pl::index_t, pl::index_t) { return 0; }
#ifdef PLATEAU_FAIL_TEST_CONTROL
  static std::size_t exclusive_scan_scratch_bytes(pl::index_t) { return 0; }
#endif
};

void make() {
  pl::dry_run<somewhere> backend("rank 0");
  static_cast<void>(backend);
}
