// SPDX-License-Identifier: Apache-2.0
//
// Dry runs of the program and the promises of its steps, one of each for every scratch and compute type, each
// in a translation unit of its own (dry_training.hpp). For programs that want them and not how they are made.
#pragma once

#include "run_result.hpp"
#include "step_promise.hpp"
#include "training_job.hpp"

namespace moe {

// A step without data: its peaks, and its time on job.machine, which must be there. Each throws
// collective_error with the first cause when a rank fails, as a limit on memory makes one.
run_result dry_run_builtin_fp32(const training_job& job);
run_result dry_run_builtin_bf16(const training_job& job);
// What rank `rank` of the job holds at most. Throws config_error for a shape that cannot be.
step_promise promise_builtin_fp32(const training_job& job, int rank);
step_promise promise_builtin_bf16(const training_job& job, int rank);
#if defined(MOE_HAS_BLAS)
run_result dry_run_blas_fp32(const training_job& job);
run_result dry_run_blas_bf16(const training_job& job);
step_promise promise_blas_fp32(const training_job& job, int rank);
step_promise promise_blas_bf16(const training_job& job, int rank);
#endif

} // namespace moe
