// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by cuBLAS. It stores by columns: what we store by rows as M it reads as M transposed. From
// C = op(A) op(B) follows C^T = op(B)^T op(A)^T, so the operands change places, and since each is read
// transposed already, its op stays what it is. Sums are formed in fp32 throughout: no TF32, and no partial
// sums in a narrower type. What cuBLAS needs beside the operands comes from the caller's scratch.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/launch.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

namespace plateau::inline v0::cudart {

// As `check` of check.hpp.
inline void check(cublasStatus_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  static_cast<void>(cudaGetLastError());
  throw backend_error(std::string("plateau: ") + call + ": " + cublasGetStatusName(status) + ", " +
                      cublasGetStatusString(status) + source_line{file, line}.text());
}

// Where cuBLAS's workspace begins in the scratch of a product; behind it lies the table of a grouped one.
inline unsigned char* workspace_in(scratch_view scratch) {
  const auto begin = reinterpret_cast<std::uintptr_t>(scratch.p);
  return scratch.p + (rounded_up(begin, blas_alignment) - begin);
}

// cuBLAS for the device that is current when it is made.
class blas_handle {
 public:
  blas_handle() {
    check(cublasCreate(&handle_), "cublasCreate");
    // The default mode is fp32 as written; tensor cores add partial sums of bf16 products in fp32 only.
    const cublasStatus_t status = cublasSetMathMode(
        handle_,
        static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    if (status == CUBLAS_STATUS_SUCCESS) return;
    static_cast<void>(cublasDestroy(handle_));
    check(status, "cublasSetMathMode");
  }
  blas_handle(const blas_handle&) = delete;
  blas_handle& operator=(const blas_handle&) = delete;
  ~blas_handle() { static_cast<void>(cublasDestroy(handle_)); }

  // The handle, set to this stream and to a workspace inside the scratch. In this order: cublasSetStream
  // takes the workspace back to cuBLAS's own pool.
  cublasHandle_t on(cudaStream_t stream, scratch_view scratch, source_line at) const {
    check(cublasSetStream(handle_, stream), "cublasSetStream", at.file, at.line);
    check(cublasSetWorkspace(handle_, workspace_in(scratch), blas_workspace_bytes), "cublasSetWorkspace",
          at.file, at.line);
    return handle_;
  }

 private:
  cublasHandle_t handle_ = nullptr;
};

namespace detail {
template <class T> constexpr cudaDataType_t blas_type() {
  if constexpr (std::is_same_v<T, bfloat16>)
    return CUDA_R_16BF;
  else if constexpr (std::is_same_v<T, half>)
    return CUDA_R_16F;
  else
    return CUDA_R_32F;
}
template <class A, class B, class C>
inline constexpr bool has_product = std::is_same_v<A, B> &&
                                    (std::is_same_v<A, float>
                                         ? std::is_same_v<C, float>
                                         : (std::is_same_v<A, bfloat16> ||
                                            std::is_same_v<A, half>)&&(std::is_same_v<C, A> ||
                                                                       std::is_same_v<C, float>));

constexpr cublasOperation_t blas_op(transpose op) { return op == transpose::no ? CUBLAS_OP_N : CUBLAS_OP_T; }
// A single row has no pitch that matters, but cuBLAS checks that it holds the row.
template <class Matrix> index_t pitch(const Matrix& t) {
  return t.rows <= 1 ? std::max({t.ld, t.cols, index_t{1}}) : t.ld;
}

// c *= beta, and 0 where beta is 0, whatever c held: a product of no terms.
struct scale_matrices {
  float beta;
  template <class T, class S> PLATEAU_HD void operator()(index_t i, tile_batch<T, S> c) const {
    T& at = c.p[i / (c.rows * c.cols) * c.stride + i / c.cols % c.rows * c.ld + i % c.cols];
    at = narrow<T>(beta == 0.0F ? 0.0F : beta * widen(at));
  }
};
} // namespace detail

// C = alpha op(A) op(B) + beta C for each tile of the batches, none of which is empty. Without terms, or with
// alpha = 0, A and B are not read.
template <class A, class B, class C, class S>
void multiply(const blas_handle& blas, cudaStream_t stream, const gemm_shape& shape, float alpha,
              tile_batch<const A, S> a, tile_batch<const B, S> b, float beta, tile_batch<C, S> c,
              scratch_view scratch, source_line at) {
  static_assert(
      detail::has_product<A, B, C>,
      "plateau cuda_backend: products are of fp32 into fp32, of bf16 or fp16 into the same or into fp32");
  if (shape.k == 0 || alpha == 0.0F) {
    if (beta != 1.0F)
      launch(stream, elements{c.count * c.rows * c.cols}, at, detail::scale_matrices{beta}, c);
    return;
  }
  const cublasHandle_t handle = blas.on(stream, scratch, at);
  constexpr cudaDataType_t of_a = detail::blas_type<A>(), of_b = detail::blas_type<B>(),
                           of_c = detail::blas_type<C>();
  const cublasOperation_t op_a = detail::blas_op(shape.a), op_b = detail::blas_op(shape.b);
  const index_t ld_a = detail::pitch(a), ld_b = detail::pitch(b), ld_c = detail::pitch(c);
  if (c.count == 1)
    check(cublasGemmEx_64(handle, op_b, op_a, shape.n, shape.m, shape.k, &alpha, b.p, of_b, ld_b, a.p, of_a,
                          ld_a, &beta, c.p, of_c, ld_c, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx_64", at.file, at.line);
  else
    check(cublasGemmStridedBatchedEx_64(handle, op_b, op_a, shape.n, shape.m, shape.k, &alpha, b.p, of_b,
                                        ld_b, b.stride, a.p, of_a, ld_a, a.stride, &beta, c.p, of_c, ld_c,
                                        c.stride, c.count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx_64", at.file, at.line);
}
template <class A, class B, class C, class S>
void multiply(const blas_handle& blas, cudaStream_t stream, const gemm_shape& shape, float alpha,
              tile<const A, S> a, tile<const B, S> b, float beta, tile<C, S> c, scratch_view scratch,
              source_line at) {
  multiply(blas, stream, shape, alpha, tile_batch<const A, S>{a.p, 1, 0, a.rows, a.cols, a.ld},
           tile_batch<const B, S>{b.p, 1, 0, b.rows, b.cols, b.ld}, beta,
           tile_batch<C, S>{c.p, 1, 0, c.rows, c.cols, c.ld}, scratch, at);
}

} // namespace plateau::inline v0::cudart
