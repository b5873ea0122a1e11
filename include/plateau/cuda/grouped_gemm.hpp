// SPDX-License-Identifier: Apache-2.0
//
// Grouped products: one call of cuBLAS for up to 64 groups where it has such a call and takes these operands,
// otherwise a product for each group. cuBLAS reads the operands' addresses from device memory; they travel as
// the argument of a small kernel, so that no host memory has to live until the device has read it.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/blas.hpp>
#include <plateau/cuda/launch.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace plateau::inline v0::cudart {

namespace detail {
struct address_table {
  const void* a[groups_at_once];
  const void* b[groups_at_once];
  void* c[groups_at_once];
};
struct write_addresses { // one call
  PLATEAU_HD void operator()(index_t, const address_table& addresses, address_table* table) const {
    *table = addresses;
  }
};
} // namespace detail

// Of a group whose operands fit.
template <class A, class B, class C, class S>
gemm_shape shape_of(transpose op_a, transpose op_b, const gemm_group<A, B, C, S>& g) {
  return gemm_shape{op_a, op_b, g.c.rows, g.c.cols, op_a == transpose::no ? g.a.cols : g.a.rows};
}

// Products of one type that wait to be issued by one call.
template <class T, class S> class group_batch {
 public:
  using group = gemm_group<T, T, T, S>;

  group_batch(const blas_handle& blas, cudaStream_t stream, float alpha, float beta, scratch_view scratch,
              source_line at)
      : blas_(blas), stream_(stream), scratch_(scratch), at_(at), alpha_(alpha), beta_(beta) {}

  // cuBLAS counts in 32 bits here, and wants 16-bit operands whose rows all begin at multiples of 16 bytes.
  static bool takes(const group& g, const gemm_shape& shape) {
    constexpr index_t most = std::numeric_limits<int>::max();
    const auto fits = [](const auto& t) {
      constexpr index_t step = sizeof(T) == 2 ? 16 : 1, size = sizeof(T);
      const index_t ld = detail::pitch(t);
      return ld <= most && ld * size % step == 0 && reinterpret_cast<std::uintptr_t>(t.p) % step == 0;
    };
    return CUBLAS_VERSION >= 120500 && shape.m <= most && shape.n <= most && shape.k <= most && fits(g.a) &&
           fits(g.b) && fits(g.c);
  }
  // A group of which there is something to multiply; it outlives the batch.
  void add(const group& g, const gemm_shape& shape) {
    groups_[count_] = {&g, shape};
    if (++count_ == groups_at_once) issue();
  }
  void issue() {
    if (count_ != 0 && !(count_ > 1 && issue_together()))
      for (int i = 0; i < count_; ++i) {
        const auto& [g, shape] = groups_[i];
        multiply(blas_, stream_, shape, alpha_, g->a, g->b, beta_, g->c, scratch_, at_);
      }
    count_ = 0;
  }

 private:
  // False, with nothing multiplied, where this cuBLAS has no such product for this device.
  bool issue_together() {
#if CUBLAS_VERSION >= 120500
    // The lists are read at the call. As in `multiply` the operands change places, n comes before m.
    cublasOperation_t op_a[groups_at_once], op_b[groups_at_once];
    int m[groups_at_once], n[groups_at_once], k[groups_at_once], one[groups_at_once];
    int ld_a[groups_at_once], ld_b[groups_at_once], ld_c[groups_at_once];
    float alpha[groups_at_once], beta[groups_at_once];
    detail::address_table addresses{};
    for (int i = 0; i < count_; ++i) {
      const auto& [g, shape] = groups_[i];
      op_a[i] = detail::blas_op(shape.a), op_b[i] = detail::blas_op(shape.b);
      m[i] = static_cast<int>(shape.m), n[i] = static_cast<int>(shape.n), k[i] = static_cast<int>(shape.k);
      ld_a[i] = static_cast<int>(detail::pitch(g->a)), ld_b[i] = static_cast<int>(detail::pitch(g->b));
      ld_c[i] = static_cast<int>(detail::pitch(g->c));
      alpha[i] = alpha_, beta[i] = beta_, one[i] = 1;
      addresses.a[i] = g->a.p, addresses.b[i] = g->b.p, addresses.c[i] = g->c.p;
    }
    // The kernel comes first in the stream, and after the product before, which may still read the old table.
    auto* const table =
        reinterpret_cast<detail::address_table*>(workspace_in(scratch_) + blas_workspace_bytes);
    launch(stream_, elements{1}, at_, detail::write_addresses{}, addresses, table);
    constexpr cudaDataType_t type = detail::blas_type<T>();
    const cublasStatus_t status = cublasGemmGroupedBatchedEx(
        blas_.on(stream_, scratch_, at_), op_b, op_a, n, m, k, alpha, table->b, type, ld_b, table->a, type,
        ld_a, beta, table->c, type, ld_c, count_, one, CUBLAS_COMPUTE_32F);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) return false;
    check(status, "cublasGemmGroupedBatchedEx", at_.file, at_.line);
    return true;
#else
    return false;
#endif
  }

  struct member {
    const group* g = nullptr;
    gemm_shape shape{};
  };
  const blas_handle& blas_;
  cudaStream_t stream_;
  scratch_view scratch_;
  source_line at_;
  float alpha_, beta_;
  int count_ = 0;
  member groups_[groups_at_once];
};

// C = alpha op(A) op(B) + beta C for each group, in any order.
template <class A, class B, class C, class S>
void multiply_groups(const blas_handle& blas, cudaStream_t stream, transpose op_a, transpose op_b,
                     float alpha, float beta, std::span<const gemm_group<A, B, C, S>> groups,
                     scratch_view scratch, source_line at) {
  [[maybe_unused]] group_batch<C, S> batch(blas, stream, alpha, beta, scratch, at);
  for (const gemm_group<A, B, C, S>& g : groups) {
    const gemm_shape shape = shape_of(op_a, op_b, g);
    if (shape.m == 0 || shape.n == 0) continue;
    if constexpr (std::is_same_v<A, C> && std::is_same_v<B, C>) // cuBLAS has it for equal types only
      if (shape.k != 0 && alpha != 0.0F && batch.takes(g, shape)) {
        batch.add(g, shape);
        continue;
      }
    multiply(blas, stream, shape, alpha, g.a, g.b, beta, g.c, scratch, at);
  }
  batch.issue();
}

} // namespace plateau::inline v0::cudart
