// SPDX-License-Identifier: Apache-2.0
#if defined(MOE_HAS_BLAS)
#include "host_ranks.hpp"

#include <plateau/blas/blas_gemm.hpp>
#include <plateau/host/backend.hpp>

std::optional<moe::run_result> moe::train_blas_fp32(const training_job& job) {
  return run_on_host<plateau::basic_host_backend<plateau::blas_gemm>, float>(job);
}
#endif
