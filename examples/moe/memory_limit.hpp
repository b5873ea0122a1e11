// SPDX-License-Identifier: Apache-2.0
//
// --memory-limit against the promise of a step, before anything is trained: a limit below what is promised
// would be refused by the meter in the middle of construction, which can say neither what each tag comes to
// nor which limit would do. What unflattened peaks add is left to the meter: it grows with the input.
#pragma once

#include "cuda_runs.hpp"
#include "dry_runs.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "step_promise.hpp"
#include "training_job.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace moe {

// What rank `rank` of the job will hold at most, with its text's vocabulary; nothing is run. Throws
// plateau::config_error for a shape that cannot be.
inline step_promise promise_of(const training_job& job, int rank) {
  const bool bf16 = job.config.dtype == compute_type::bf16;
  if (job.config.backend == backend_choice::cuda)
    return bf16 ? promise_cuda_bf16(job, rank) : promise_cuda_fp32(job, rank);
#if defined(MOE_HAS_BLAS)
  if (job.config.gemm == gemm_choice::blas)
    return bf16 ? promise_blas_bf16(job, rank) : promise_blas_fp32(job, rank);
#endif
  return bf16 ? promise_builtin_bf16(job, rank) : promise_builtin_fp32(job, rank);
}
// The same, were every peak flattened.
inline step_promise flattened_promise_of(training_job job, int rank) {
  job.config.flatten = {true, true, true, true};
  return promise_of(job, rank);
}

// Of all ranks, that which holds the most device memory: the first one, which may have a state to write, or
// the last one, which has as many rows of the head as any.
inline int fullest_rank(const training_job& job) {
  const int last = static_cast<int>(job.config.ranks) - 1;
  return last > 0 && promise_of(job, last).least.device_bytes > promise_of(job, 0).least.device_bytes ? last
                                                                                                      : 0;
}

// Throws input_error for a limit below what is promised, with the promise of each tag and the smallest limit
// that would do.
inline void check_memory_limit(const training_job& job) {
  const options& o = job.config;
  if (!o.memory_limit_bytes) return;
  const int rank = fullest_rank(job);
  const step_promise p = promise_of(job, rank);
  std::size_t known = 0, enough = 0; // with what unflattened peaks add, and with none of them
  for (const int each : {0, static_cast<int>(o.ranks) - 1}) {
    known = std::max(known, promise_of(job, each).total.device_bytes);
    enough = std::max(enough, flattened_promise_of(job, each).total.device_bytes);
  }
  // A run that is at its end already has no step that could add anything.
  const bool steps = o.dry_run || job.first_step < o.last_step();
  if (*o.memory_limit_bytes >= (p.bounded() && steps ? known : p.least.device_bytes)) return;
  const std::string list =
      fmt::format("{} (the most of each on rank {}; what {} bytes of workspace lend in turn counts for each)",
                  promise_text(p), rank, p[plateau::tag::workspace].most.device_bytes);
  if (p.all_promised())
    throw input_error{
        fmt::format("--memory-limit {}: a step needs {}, most of all in its {}: {}; expected at "
                    "least {}",
                    *o.memory_limit_bytes, p.least.device_bytes, p.peak_phase, list, p.least.device_bytes)};
  throw input_error{
      fmt::format("--memory-limit {}: a step needs {} before the peaks that are not flattened add anything: "
                  "{}; expected {} {} with what these add, or --flatten all, for which {} would do",
                  *o.memory_limit_bytes, p.least.device_bytes, list, p.bounded() ? "at least" : "more than",
                  known, enough)};
}

} // namespace moe
