// SPDX-License-Identifier: Apache-2.0
//
// What the training program has of CUDA, as plain functions: whoever calls them needs neither nvcc nor a GPU.
// A dry run needs no more than the host's compiler. The others are there where the program is built with
// CUDA.
#pragma once

#include "step_promise.hpp"
#include "training_job.hpp"

#include <optional>

namespace moe {

run_result dry_run_cuda_fp32(const training_job& job);
run_result dry_run_cuda_bf16(const training_job& job);
step_promise promise_cuda_fp32(const training_job& job, int rank);
step_promise promise_cuda_bf16(const training_job& job, int rank);

#if defined(MOE_HAS_CUDA)
// Throws plateau::backend_error with a sentence where there is no GPU that this program can use.
void check_cuda();
// As the others of training_job.hpp. Rank r computes on GPU r modulo their number; ranks that are processes
// count those of their own machine, and each needs a GPU of its own.
std::optional<run_result> train_cuda_fp32(const training_job& job);
std::optional<run_result> train_cuda_bf16(const training_job& job);
#endif

} // namespace moe
