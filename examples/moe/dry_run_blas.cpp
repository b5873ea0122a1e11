// SPDX-License-Identifier: Apache-2.0
#if defined(MOE_HAS_BLAS)
#include "dry_training.hpp"

#include <plateau/blas/blas_gemm.hpp>
#include <plateau/host/backend.hpp>

moe::run_result moe::dry_run_blas_fp32(const training_job& job) {
  return run_dry_training<plateau::basic_host_backend<plateau::blas_gemm>, float>(job);
}
moe::run_result moe::dry_run_blas_bf16(const training_job& job) {
  return run_dry_training<plateau::basic_host_backend<plateau::blas_gemm>, plateau::bfloat16>(job);
}
moe::step_promise moe::promise_blas_fp32(const training_job& job, int rank) {
  return promise_of_job<plateau::basic_host_backend<plateau::blas_gemm>, float>(job, rank);
}
moe::step_promise moe::promise_blas_bf16(const training_job& job, int rank) {
  return promise_of_job<plateau::basic_host_backend<plateau::blas_gemm>, plateau::bfloat16>(job, rank);
}
#endif
