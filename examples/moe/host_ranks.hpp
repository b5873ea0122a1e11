// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a run on the host's backends: threads of this process, or this process itself where it
// is one of several.
#pragma once

#include "training_run.hpp"

#include <plateau/host/stream.hpp>
#include <plateau/run_ranks.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace moe {

struct host_ranks {
  process_communicator* processes = nullptr; // null: threads

  template <class RankFunction>
  void operator()(int ranks, std::chrono::seconds deadline, RankFunction&& run_rank) const {
    const auto with_name = [&](plateau::any_communicator<plateau::host::stream>& world) {
      const std::string owner = "rank " + std::to_string(world.rank());
      run_rank(world, owner.c_str());
    };
    if (processes != nullptr) return with_name(*processes);
    plateau::run_ranks(ranks,
                       [&](plateau::thread_communicator& plain) {
                         plateau::any_communicator<plateau::host::stream> world(&plain);
                         with_name(world);
                       },
                       {.deadline = deadline});
  }
};

template <class Backend, class T> std::optional<run_result> run_on_host(const training_job& job) {
  return run_training<Backend, T>(job, host_ranks{job.processes});
}

} // namespace moe
