// SPDX-License-Identifier: Apache-2.0
#include "training_run.hpp"

#include <plateau/host/backend.hpp>

moe::run_result moe::train_builtin_bf16(const training_job& job) {
  return run_training<plateau::host_backend, plateau::bfloat16>(job);
}
