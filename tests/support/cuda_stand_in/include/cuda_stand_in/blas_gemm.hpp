// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: GemmEx and GemmStridedBatchedEx. What the documentation calls undefined, matrices of C that
// overlap each other or A or B, is a finding.
#pragma once

#include <cuda_stand_in/blas_handle.hpp>
#include <cuda_stand_in/blas_product.hpp>

#include <algorithm>
#include <cstdint>

namespace cuda_stand_in {

// What all products have in common, as it is asked for.
struct blas_shape {
  cublasOperation_t op_a, op_b;
  std::int64_t m, n, k;
  std::int64_t ld_a, ld_b, ld_c;
  cudaDataType type_a, type_b, type_c;
  cublasComputeType_t compute;

  blas_matrix a(char* p) const {
    return op_a == CUBLAS_OP_N ? blas_matrix{p, m, k, ld_a, type_a} : blas_matrix{p, k, m, ld_a, type_a};
  }
  blas_matrix b(char* p) const {
    return op_b == CUBLAS_OP_N ? blas_matrix{p, k, n, ld_b, type_b} : blas_matrix{p, n, k, ld_b, type_b};
  }
  blas_matrix c(char* p) const { return {p, m, n, ld_c, type_c}; }
};

inline cublasStatus_t check_shape(const blas_shape& s) {
  for (const cublasOperation_t op : {s.op_a, s.op_b})
    if (op != CUBLAS_OP_N && op != CUBLAS_OP_T && op != CUBLAS_OP_C) return CUBLAS_STATUS_INVALID_VALUE;
  if (s.m < 0 || s.n < 0 || s.k < 0) return CUBLAS_STATUS_INVALID_VALUE;
  const auto too_small = [](std::int64_t ld, std::int64_t rows) {
    return ld < std::max<std::int64_t>(1, rows);
  };
  if (too_small(s.ld_a, s.a(nullptr).rows) || too_small(s.ld_b, s.b(nullptr).rows) || too_small(s.ld_c, s.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (s.compute != CUBLAS_COMPUTE_32F && s.compute != CUBLAS_COMPUTE_32F_PEDANTIC) {
    report("a product in cuBLAS with a compute type other than plain fp32: it rounds the inputs or the sums");
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool same = s.type_a == s.type_b && size_of(s.type_a) != 0;
  const bool fits = s.type_c == s.type_a || s.type_c == CUDA_R_32F;
  return same && fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
// The stream of a product, which belongs to the handle's device, as does the calling thread.
inline CUstream_st* stream_of_product(cublasHandle_t handle) {
  CUstream_st* const s = stream_of(handle->stream);
  if (s == nullptr) return nullptr;
  if (s->device == handle->device && current_device == handle->device) return s;
  report("a product in cuBLAS while another device is current than its handle was made for");
  return nullptr;
}

struct batch {
  span_of_bytes bytes;
  std::int64_t stride = 0; // elements
};

// Whether any element of C belongs to two products, or to A or B as well.
inline bool clashes(const blas_shape& s, std::int64_t count, const batch& a, const batch& b, const batch& c) {
  const plain_array<unsigned char> taken(c.bytes.bytes);
  std::memset(taken.data(), 0, c.bytes.bytes);
  const auto visit = [&](const batch& of, auto matrix, auto element) {
    for (std::int64_t g = 0; g < count; ++g) {
      const blas_matrix x =
          matrix(of.bytes.real() + g * of.stride * static_cast<std::int64_t>(size_of(matrix(nullptr).type)));
      for (std::int64_t j = 0; j < x.columns; ++j)
        for (std::int64_t i = 0; i < x.rows; ++i)
          if (element(x.at(i, j))) return true;
    }
    return false;
  };
  const auto offset = [&](const char* p) { return p - c.bytes.real(); };
  if (visit(
          c, [&](char* p) { return s.c(p); },
          [&](const char* p) { return taken[static_cast<std::size_t>(offset(p))]++ != 0; }))
    return true;
  const auto hit = [&](const char* p) {
    return offset(p) >= 0 && offset(p) < static_cast<std::ptrdiff_t>(c.bytes.bytes) &&
           taken[static_cast<std::size_t>(offset(p))] != 0;
  };
  return (a.bytes.overlaps(c.bytes) && visit(
                                           a, [&](char* p) { return s.a(p); }, hit)) ||
         (b.bytes.overlaps(c.bytes) && visit(
                                           b, [&](char* p) { return s.b(p); }, hit));
}

inline cublasStatus_t multiply(cublasHandle_t handle, const blas_shape& s, const void* alpha, const void* a,
                               std::int64_t stride_a, const void* b, std::int64_t stride_b, const void* beta,
                               void* c, std::int64_t stride_c, std::int64_t count) {
  if (const cublasStatus_t bad = check_shape(s); bad != CUBLAS_STATUS_SUCCESS) return bad;
  if (count < 0 || alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* scalar : {alpha, beta})
    if (locate(scalar).kind == memory_kind::device) {
      report("a factor of a product in cuBLAS lies on the device, while the handle takes it from the host");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  if (s.m == 0 || s.n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  CUstream_st* const stream = stream_of_product(handle);
  if (stream == nullptr) return CUBLAS_STATUS_EXECUTION_FAILED;
  float factor = 0, old = 0;
  std::memcpy(&factor, alpha, 4);
  std::memcpy(&old, beta, 4);
  const auto all = [&](const void* p, const blas_matrix& one, std::int64_t stride, bool touched) {
    const std::size_t more = static_cast<std::size_t>((count - 1) * stride) * size_of(one.type);
    return batch{bytes_at(p, touched && one.reach() != 0 ? more + one.reach() : 0), stride};
  };
  const batch of_a = all(a, s.a(nullptr), stride_a, factor != 0),
              of_b = all(b, s.b(nullptr), stride_b, factor != 0), of_c = all(c, s.c(nullptr), stride_c, true);
  const span_of_bytes workspace = handle->workspace;
  if (handle->own_pool) products_in_own_pool().fetch_add(1, std::memory_order_relaxed);
  for (const batch& each : {of_a, of_b, of_c})
    if (workspace.overlaps(each.bytes)) report("the workspace of cuBLAS overlaps a matrix");
  stream->append([=] {
    if (!all_there(stream->device, "a product in cuBLAS", {of_a.bytes, of_b.bytes, of_c.bytes, workspace}))
      return;
    scribble(workspace);
    if ((count > 1 || of_a.bytes.overlaps(of_c.bytes) || of_b.bytes.overlaps(of_c.bytes)) &&
        clashes(s, count, of_a, of_b, of_c))
      report("matrices C of a product in cuBLAS overlap each other, or A or B");
    for (std::int64_t g = 0; g < count; ++g) {
      const auto at = [g](const batch& of, cudaDataType t) {
        return of.bytes.real() + g * of.stride * static_cast<std::int64_t>(size_of(t));
      };
      blas_product(s.op_a != CUBLAS_OP_N, s.op_b != CUBLAS_OP_N, s.k, factor, s.a(at(of_a, s.type_a)),
                   s.b(at(of_b, s.type_b)), old, s.c(at(of_c, s.type_c)));
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace cuda_stand_in

inline cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa,
                                      cublasOperation_t transb, std::int64_t m, std::int64_t n,
                                      std::int64_t k, const void* alpha, const void* A, cudaDataType Atype,
                                      std::int64_t lda, const void* B, cudaDataType Btype, std::int64_t ldb,
                                      const void* beta, void* C, cudaDataType Ctype, std::int64_t ldc,
                                      cublasComputeType_t compute, cublasGemmAlgo_t) {
  using namespace cuda_stand_in;
  return blas_call("cublasGemmEx_64", handle, [&] {
    return multiply(handle, {transa, transb, m, n, k, lda, ldb, ldc, Atype, Btype, Ctype, compute}, alpha, A,
                    0, B, 0, beta, C, 0, 1);
  });
}
inline cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, std::int64_t m, std::int64_t n,
    std::int64_t k, const void* alpha, const void* A, cudaDataType Atype, std::int64_t lda, long long strideA,
    const void* B, cudaDataType Btype, std::int64_t ldb, long long strideB, const void* beta, void* C,
    cudaDataType Ctype, std::int64_t ldc, long long strideC, std::int64_t batchCount,
    cublasComputeType_t compute, cublasGemmAlgo_t) {
  using namespace cuda_stand_in;
  return blas_call("cublasGemmStridedBatchedEx_64", handle, [&] {
    return multiply(handle, {transa, transb, m, n, k, lda, ldb, ldc, Atype, Btype, Ctype, compute}, alpha, A,
                    strideA, B, strideB, beta, C, strideC, batchCount);
  });
}
