// SPDX-License-Identifier: Apache-2.0
#include "host_ranks.hpp"

#include <plateau/host/backend.hpp>

std::optional<moe::run_result> moe::train_builtin_fp32(const training_job& job) {
  return run_on_host<plateau::host_backend, float>(job);
}
