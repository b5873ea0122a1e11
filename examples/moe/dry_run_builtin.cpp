// SPDX-License-Identifier: Apache-2.0
#include "dry_training.hpp"

#include <plateau/host/backend.hpp>

moe::run_result moe::dry_run_builtin_fp32(const training_job& job) {
  return run_dry_training<plateau::host_backend, float>(job);
}
moe::run_result moe::dry_run_builtin_bf16(const training_job& job) {
  return run_dry_training<plateau::host_backend, plateau::bfloat16>(job);
}
moe::step_promise moe::promise_builtin_fp32(const training_job& job, int rank) {
  return promise_of_job<plateau::host_backend, float>(job, rank);
}
moe::step_promise moe::promise_builtin_bf16(const training_job& job, int rank) {
  return promise_of_job<plateau::host_backend, plateau::bfloat16>(job, rank);
}
