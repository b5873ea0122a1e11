// SPDX-License-Identifier: Apache-2.0
#include "host_ranks.hpp"

#include <plateau/host/backend.hpp>

std::optional<moe::run_result> moe::train_builtin_bf16(const training_job& job) {
  return run_on_host<plateau::host_backend, plateau::bfloat16>(job);
}
