// SPDX-License-Identifier: Apache-2.0
#include "dry_training.hpp"

#include <plateau/host/backend.hpp>

moe::run_result moe::dry_run_builtin_fp32(const training_job& job) {
  return run_dry_training<plateau::host_backend, float>(job);
}
moe::run_result moe::dry_run_builtin_bf16(const training_job& job) {
  return run_dry_training<plateau::host_backend, plateau::bfloat16>(job);
}
