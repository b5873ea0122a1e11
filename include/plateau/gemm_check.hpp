// SPDX-License-Identifier: Apache-2.0
//
// What every backend checks before it multiplies: that the operands fit, and that a result which is only
// written is not also read. One place, so that the same mistake gives the same sentence on every machine.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <string>

namespace plateau::inline v0 {

namespace detail {
template <class Matrix> std::string extents(const Matrix& t) {
  return "(" + std::to_string(t.rows) + ", " + std::to_string(t.cols) + ")";
}
// Tiles and batches of them alike: both have rows and cols.
template <class A, class B, class C>
gemm_shape fitting_shape(transpose op_a, transpose op_b, const A& a, const B& b, const C& c, source_line at,
                         const char* owner) {
  const index_t m = op_a == transpose::no ? a.rows : a.cols, k = op_a == transpose::no ? a.cols : a.rows;
  const index_t n = op_b == transpose::no ? b.cols : b.rows, k_of_b = op_b == transpose::no ? b.rows : b.cols;
  if (k != k_of_b || c.rows != m || c.cols != n)
    throw config_error(error_prefix(owner) + "gemm: op(a) of " + extents(a) +
                       (op_a == transpose::yes ? " transposed" : "") + " times op(b) of " + extents(b) +
                       (op_b == transpose::yes ? " transposed" : "") + " does not give c of " + extents(c) +
                       at.text());
  return {op_a, op_b, m, n, k};
}
} // namespace detail

// The shape of C = alpha op(A) op(B) + beta C. Throws config_error when the operands do not fit, or when beta
// is not 0 though c comes as out(c), which is not read. `at` is the place of the call, `owner` the rank, for
// the error.
template <class A, class B, class C, access_mode Mode>
gemm_shape checked_shape(transpose op_a, transpose op_b, const A& a, const B& b, float beta,
                         const arg<C, Mode>& c, source_line at = {}, const char* owner = "") {
  static_assert(Mode == access_mode::write || Mode == access_mode::update,
                "plateau: gemm: the result comes as out(c) with beta = 0, or as inout(c)");
  if (Mode == access_mode::write && beta != 0.0F)
    throw config_error(error_prefix(owner) + "gemm: beta is " + std::to_string(beta) +
                       ", so c is read: pass inout(c), not out(c)" + at.text());
  return detail::fitting_shape(op_a, op_b, a, b, c.v, at, owner);
}

} // namespace plateau::inline v0
