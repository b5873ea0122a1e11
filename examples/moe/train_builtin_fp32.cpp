// SPDX-License-Identifier: Apache-2.0
#include "training_run.hpp"

#include <plateau/host/backend.hpp>

moe::run_result moe::train_builtin_fp32(const training_job& job) {
  return run_training<plateau::host_backend, float>(job);
}
