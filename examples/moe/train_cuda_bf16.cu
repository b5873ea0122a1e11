// SPDX-License-Identifier: Apache-2.0
#include "cuda_ranks.hpp"

std::optional<moe::run_result> moe::train_cuda_bf16(const training_job& job) {
  return run_on_cuda<plateau::bfloat16>(job);
}
