// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: GemmGroupedBatchedEx. Shapes and factors of the groups lie on the host, the pointers to their
// matrices on the device: they are read when the products run.
#pragma once

#include <cuda_stand_in/blas_gemm.hpp>

#include <cstring>

namespace cuda_stand_in {

struct one_group {
  blas_shape shape;
  float alpha, beta;
  int products;
};

inline void run_group(int device, const one_group& g, char* const* a, char* const* b, char* const* c) {
  const blas_shape& s = g.shape;
  if (s.m == 0 || s.n == 0) return;
  for (int i = 0; i < g.products; ++i) {
    const bool read = g.alpha != 0;
    const span_of_bytes of_a = bytes_at(a[i], read ? s.a(nullptr).reach() : 0),
                        of_b = bytes_at(b[i], read ? s.b(nullptr).reach() : 0),
                        of_c = bytes_at(c[i], s.c(nullptr).reach());
    if (!all_there(device, "a grouped product in cuBLAS", {of_a, of_b, of_c})) return;
    blas_product(s.op_a != CUBLAS_OP_N, s.op_b != CUBLAS_OP_N, s.k, g.alpha, s.a(of_a.real()),
                 s.b(of_b.real()), g.beta, s.c(of_c.real()));
  }
}

} // namespace cuda_stand_in

inline cublasStatus_t
cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t transa_array[],
                           const cublasOperation_t transb_array[], const int m_array[], const int n_array[],
                           const int k_array[], const void* alpha_array, const void* const Aarray[],
                           cudaDataType_t Atype, const int lda_array[], const void* const Barray[],
                           cudaDataType_t Btype, const int ldb_array[], const void* beta_array,
                           void* const Carray[], cudaDataType_t Ctype, const int ldc_array[], int group_count,
                           const int group_size[], cublasComputeType_t compute) {
  using namespace cuda_stand_in;
  return blas_call("cublasGemmGroupedBatchedEx", handle, [&]() -> cublasStatus_t {
    if (group_count < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (Ctype != Atype) return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto groups = static_cast<std::size_t>(group_count);
    auto* const list = static_cast<one_group*>(std::malloc(groups * sizeof(one_group) + 1));
    if (list == nullptr) return CUBLAS_STATUS_ALLOC_FAILED;
    std::size_t products = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      list[g] = {{transa_array[g], transb_array[g], m_array[g], n_array[g], k_array[g], lda_array[g],
                  ldb_array[g], ldc_array[g], Atype, Btype, Ctype, compute},
                 static_cast<const float*>(alpha_array)[g],
                 static_cast<const float*>(beta_array)[g],
                 group_size[g]};
      cublasStatus_t bad = check_shape(list[g].shape);
      if (group_size[g] < 0) bad = CUBLAS_STATUS_INVALID_VALUE;
      if (bad != CUBLAS_STATUS_SUCCESS) {
        std::free(list);
        return bad;
      }
      products += static_cast<std::size_t>(group_size[g]);
    }
    CUstream_st* const stream = stream_of_product(handle);
    const span_of_bytes pa = bytes_at(Aarray, products * sizeof(void*)),
                        pb = bytes_at(Barray, products * sizeof(void*)),
                        pc = bytes_at(Carray, products * sizeof(void*)), workspace = handle->workspace;
    bool on_device = true;
    for (const span_of_bytes& p : {pa, pb, pc})
      on_device = on_device && (products == 0 || p.where.kind == memory_kind::device);
    if (!on_device) report("the arrays of pointers of a grouped product in cuBLAS do not lie on the device");
    if (stream == nullptr || !on_device || products == 0) {
      std::free(list);
      return stream != nullptr && on_device ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (handle->own_pool) products_in_own_pool().fetch_add(1, std::memory_order_relaxed);
    stream->append([=] {
      if (all_there(stream->device, "a grouped product in cuBLAS", {pa, pb, pc, workspace})) {
        scribble(workspace);
        auto* const a = reinterpret_cast<char* const*>(pa.real());
        auto* const b = reinterpret_cast<char* const*>(pb.real());
        auto* const c = reinterpret_cast<char* const*>(pc.real());
        int at = 0;
        for (std::size_t g = 0; g < groups; ++g) {
          run_group(stream->device, list[g], a + at, b + at, c + at);
          at += list[g].products;
        }
      }
      std::free(list);
    });
    return CUBLAS_STATUS_SUCCESS;
  });
}
