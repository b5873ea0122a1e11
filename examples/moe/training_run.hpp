// SPDX-License-Identifier: Apache-2.0
//
// One run of the training program: options in, results out. Who starts the ranks is a parameter, beside the
// backend and the compute type; each combination that the program has is instantiated in one translation unit
// (training_job.hpp lists them).
#pragma once

#include "lock_step.hpp"
#include "train_rank.hpp"

#include <chrono>
#include <optional>
#include <utility>

namespace moe {

// `launch(ranks, deadline, rank_function)` runs the ranks that this process has, each on a thread of its own
// or one on the caller's, and returns when they have ended: it throws when one fails, which must not leave
// ranks elsewhere waiting. It calls rank_function(any_communicator<Backend::stream>&, arguments...) for each,
// with the arguments of the Backend's constructor. Keep the types of these arguments the same in all
// launchers of a Backend: each set of types compiles the trainer anew. Throws what launch throws. The result
// where rank 0 is, nothing elsewhere.
template <class Backend, class T, class Launch>
std::optional<run_result> run_training(const training_job& job, Launch&& launch) {
  const shared_run run(job);
  std::optional<run_result> result; // written by rank 0, if it is here
  launch(run.grid.ranks, std::chrono::seconds{job.config.deadline_seconds},
         [&](plateau::any_communicator<typename Backend::stream>& world, const auto&... backend_arguments) {
           auto mine = job.config.parity ? train_in_lock_step<T, Backend>(run, world, backend_arguments...)
                                         : train_rank<T, Backend>(run, world, backend_arguments...);
           if (mine) result = std::move(mine);
         });
  return result;
}

} // namespace moe
