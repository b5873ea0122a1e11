// SPDX-License-Identifier: Apache-2.0
//
// How much scratch a list of operations needs when they run one after the other: the largest.
#pragma once

#include "model_config.hpp"

#include <plateau/column_sum.hpp>
#include <plateau/gemm.hpp>

#include <algorithm>
#include <cstddef>

namespace moe {

template <class Backend> class scratch_need {
 public:
  // op(A) (m, k) in A times op(B) (k, n) in B into C.
  template <class A, class B, class C>
  scratch_need& gemm(plateau::transpose op_a, plateau::transpose op_b, index_t m, index_t n, index_t k) {
    return at_least(Backend::template gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k));
  }
  // The three products of a linear layer y (m, out) = x (m, in) W^T (out, in): y, dx, dW (fp32).
  template <class T> scratch_need& linear(index_t m, index_t in, index_t out) {
    using plateau::transpose;
    gemm<T, T, T>(transpose::no, transpose::yes, m, out, in);
    gemm<T, T, float>(transpose::no, transpose::yes, m, out, in);
    gemm<T, T, T>(transpose::no, transpose::no, m, in, out);
    return gemm<T, T, float>(transpose::yes, transpose::no, out, in, m);
  }
  scratch_need& group_by_key(index_t n, index_t keys) {
    return at_least(Backend::group_by_key_scratch_bytes(n, keys));
  }
  scratch_need& column_sum(index_t rows, index_t columns) {
    return at_least(plateau::column_sum_scratch_bytes(rows, columns));
  }
  scratch_need& at_least(std::size_t bytes) {
    bytes_ = std::max(bytes_, bytes);
    return *this;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

} // namespace moe
