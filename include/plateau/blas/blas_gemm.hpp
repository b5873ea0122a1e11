// SPDX-License-Identifier: Apache-2.0
//
// A GEMM policy of the host backend that calls cblas_sgemm. OpenBLAS as Debian ships it multiplies floats
// only, so bfloat16 and half operands are widened block by block into the caller's scratch (at most 3 MiB),
// sums stay in float over the whole depth, and C is rounded once. A type of its own rather than a switch: two
// translation units must not disagree. How many threads the BLAS uses is for the program to say
// (`openblas_set_num_threads(1)` where ranks are threads); nothing here touches that. <cblas.h> of OpenBLAS
// declares a global type `bfloat16`: write `plateau::bfloat16` where this header is included.
#pragma once

#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/host/block_gemm_pack.hpp>

#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail::blas_gemm {

using detail::block_gemm::at_level;
using detail::block_gemm::narrow_run;
using detail::block_gemm::widen_run;

inline constexpr index_t block = 512; // rows, columns and depth of one call where an operand is widened

// Rows, columns and terms of one call, and floats of scratch, in the order a, b, c.
struct plan {
  index_t rows, columns, terms;
  index_t a_floats, b_floats, c_floats;

  plan(index_t m, index_t n, index_t k, scalar_kind a, scalar_kind b, scalar_kind c) {
    const bool widen_a = a != scalar_kind::fp32, widen_b = b != scalar_kind::fp32,
               widen_c = c != scalar_kind::fp32;
    // The BLAS counts in blasint: what does not fit is cut, well below its end.
    const index_t most = widen_a || widen_b || widen_c ? block : index_t{1} << 30;
    rows = std::min(m, most);
    columns = std::min(n, most);
    terms = std::min(k, most);
    a_floats = widen_a ? rows * terms : 0;
    b_floats = widen_b ? terms * columns : 0;
    c_floats = widen_c ? rows * columns : 0;
  }
};

// A block as floats with rows of `ld` elements: where it is, or widened into `buffer`.
struct floats {
  const float* data;
  index_t ld;
};
template <class T>
floats as_floats(const T* from, index_t ld, index_t rows, index_t columns, float* __restrict buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {from, ld};
  } else {
    for (index_t i = 0; i < rows; ++i) block_gemm::widen_run(from + i * ld, columns, buffer + i * columns);
    return {buffer, columns};
  }
}

inline blasint leading(index_t ld, const char* which) {
  if (ld > std::numeric_limits<blasint>::max())
    throw config_error("plateau: blas_gemm: " + std::string(which) + " has rows " + std::to_string(ld) +
                       " elements apart, but this BLAS counts up to " +
                       std::to_string(std::numeric_limits<blasint>::max()) +
                       ": use the built-in block_gemm or a BLAS with 64-bit integers");
  return static_cast<blasint>(ld);
}

} // namespace detail::blas_gemm

struct blas_gemm {
  // A vendor's library chooses its kernels by shape, and with them the order of a sum.
  static constexpr bool row_invariant = false;
  static constexpr const char* name = "blas";

  // Bytes that `run` needs and touches, aligned for float; 0 where all three are float. Does not grow when m,
  // n or k shrink.
  static std::size_t scratch_bytes(transpose, transpose, index_t m, index_t n, index_t k, scalar_kind a,
                                   scalar_kind b, scalar_kind c) noexcept {
    if (m <= 0 || n <= 0 || k <= 0) return 0;
    const detail::blas_gemm::plan p{m, n, k, a, b, c};
    return static_cast<std::size_t>(p.a_floats + p.b_floats + p.c_floats) * sizeof(float);
  }

  // C (m, n; ldc) = alpha op(A) op(B) + beta C. op(A) (m, k): A has rows of lda elements; op(B) (k, n): rows
  // of ldb. Reads no C where beta is 0, and neither A nor B where alpha or k is 0. Calls the BLAS on the
  // calling thread. Throws config_error where a leading dimension exceeds the integers of the BLAS.
  template <class A, class B, class C>
  static void run(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, float alpha, const A* a,
                  index_t lda, const B* b, index_t ldb, float beta, C* c, index_t ldc, void* scratch,
                  cpu_level level) {
    using namespace detail::blas_gemm;
    if (m <= 0 || n <= 0) return;
    if (k <= 0 || alpha == 0.0f) {
      if (beta != 1.0f) detail::block_gemm::scale<C>({c, ldc, 1}, m, n, beta);
      return;
    }
    const plan p{m, n, k, scalar_kind_of<A>, scalar_kind_of<B>, scalar_kind_of<C>};
    auto* const a_buffer = static_cast<float*>(scratch);
    float* const b_buffer = a_buffer + p.a_floats;
    float* const c_buffer = b_buffer + p.b_floats;
    const bool a_turned = op_a == transpose::yes, b_turned = op_b == transpose::yes;

    for (index_t i = 0; i < m; i += p.rows)
      for (index_t j = 0; j < n; j += p.columns) {
        const index_t rows = std::min(p.rows, m - i), columns = std::min(p.columns, n - j);
        C* const c_block = c + i * ldc + j;
        float* sums = c_buffer;
        index_t ld_sums = columns;
        if constexpr (std::is_same_v<C, float>) {
          sums = c_block;
          ld_sums = ldc;
        } else if (beta != 0.0f) {
          at_level(level, [&] { as_floats(c_block, ldc, rows, columns, sums); });
        }
        for (index_t q = 0; q < k; q += p.terms) {
          const index_t terms = std::min(p.terms, k - q);
          floats left, right;
          at_level(level, [&] {
            left = a_turned ? as_floats(a + q * lda + i, lda, terms, rows, a_buffer)
                            : as_floats(a + i * lda + q, lda, rows, terms, a_buffer);
            right = b_turned ? as_floats(b + j * ldb + q, ldb, columns, terms, b_buffer)
                             : as_floats(b + q * ldb + j, ldb, terms, columns, b_buffer);
          });
          cblas_sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
                      b_turned ? CblasTrans : CblasNoTrans, static_cast<blasint>(rows),
                      static_cast<blasint>(columns), static_cast<blasint>(terms), alpha, left.data,
                      leading(left.ld, "a"), right.data, leading(right.ld, "b"), q == 0 ? beta : 1.0f, sums,
                      leading(ld_sums, "c"));
        }
        if constexpr (!std::is_same_v<C, float>)
          at_level(level, [&] {
            for (index_t r = 0; r < rows; ++r) narrow_run(sums + r * columns, columns, c_block + r * ldc);
          });
      }
  }
};

} // namespace plateau::inline v0
