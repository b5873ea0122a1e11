// SPDX-License-Identifier: Apache-2.0
//
// What a program without a communicator of this library gives an nccl_communicator as its host channel: one
// function that gathers integers from all ranks, over whatever connects them already.
#pragma once

#include <plateau/config.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace plateau::inline v0 {

struct nccl_callback {
  int rank = -1;
  int size = 0;

  // Blocks until every rank has called it with as many integers; `all` gets those of rank 0, 1, ... : size
  // times mine.size() of them. Called on the rank's host thread. What it throws becomes the group's cause.
  std::function<void(std::span<const std::int64_t> mine, std::span<std::int64_t> all)> all_gather{};

  // This rank has failed, and others may wait in all_gather for it: end the job, or make all_gather throw on
  // all ranks. Called once, on any thread, perhaps while all_gather runs on another; must not throw. Without
  // it other ranks end when their own deadlines are over, and one that waits in all_gather does not end.
  std::function<void(const std::string& cause)> abort{};

  // The same for some of the ranks, whose numbers here are `members`, in their order there. Called on these
  // ranks alone. Without it the communicator cannot split.
  std::function<nccl_callback(std::span<const int> members)> split{};

  // A wait fails when for this long this rank has completed no operation. That of the outermost one counts.
  std::chrono::milliseconds deadline{60'000};
};

} // namespace plateau::inline v0
