// SPDX-License-Identifier: Apache-2.0
//
// What a matrix product looks like at the seam: C = alpha op(A) op(B) + beta C, everything row-major. Only
// the shape is here; the product itself belongs to a backend.
#pragma once

#include <plateau/config.hpp>

namespace plateau::inline v0 {

enum class transpose : unsigned char { no, yes };

// op(A) is (m, k), op(B) is (k, n), C is (m, n).
struct gemm_shape {
  transpose a = transpose::no; // yes: A is stored as (k, m)
  transpose b = transpose::no; // yes: B is stored as (n, k)
  index_t m = 0;
  index_t n = 0;
  index_t k = 0;

  // One multiply and one add for each term; as a double, since a step of a large model exceeds 2^63.
  PLATEAU_HD constexpr double flops() const noexcept {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  PLATEAU_HD friend constexpr bool operator==(const gemm_shape& x, const gemm_shape& y) noexcept {
    return x.a == y.a && x.b == y.b && x.m == y.m && x.n == y.n && x.k == y.k;
  }
};

} // namespace plateau::inline v0
