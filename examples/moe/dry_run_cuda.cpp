// SPDX-License-Identifier: Apache-2.0
#include "cuda_runs.hpp"
#include "dry_training.hpp"

#include <plateau/cuda/scratch_model.hpp>

moe::run_result moe::dry_run_cuda_fp32(const training_job& job) {
  return run_dry_training<plateau::cuda_scratch, float>(job);
}
moe::run_result moe::dry_run_cuda_bf16(const training_job& job) {
  return run_dry_training<plateau::cuda_scratch, plateau::bfloat16>(job);
}
moe::step_promise moe::promise_cuda_fp32(const training_job& job, int rank) {
  return promise_of_job<plateau::cuda_scratch, float>(job, rank);
}
moe::step_promise moe::promise_cuda_bf16(const training_job& job, int rank) {
  return promise_of_job<plateau::cuda_scratch, plateau::bfloat16>(job, rank);
}
