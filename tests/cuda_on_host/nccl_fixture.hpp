// SPDX-License-Identifier: Apache-2.0
//
// Ranks of an nccl_communicator on the stand-in: threads with a device each, the host channel a
// thread_communicator or a callback. The contract suites take these as they take any other ranks.
#pragma once

#include "contract/communicator_failures.hpp"
#include "stand_in_tools.hpp"

#include <plateau/cuda.hpp>
#include <plateau/nccl.hpp>
#include <plateau/run_ranks.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace nccl_ranks {

namespace pl = plateau;
using std::chrono::milliseconds;
using outcomes = std::vector<std::optional<pl::failure>>;

// On the calling thread's current device, where cuda_backend alone would take device 0.
struct backend : pl::cuda_backend {
  backend() : cuda_backend("", cuda_stand_in::current_device) {}
};

struct eight_devices : stand_in::with_settings {
  explicit eight_devices(unsigned delay_microseconds = 0) : with_settings(settings(delay_microseconds)) {}
  static cuda_stand_in::options settings(unsigned delay_microseconds) {
    cuda_stand_in::options o;
    o.devices = 8;
    o.delay_microseconds = delay_microseconds;
    return o;
  }
};

// Runs f(thread_communicator) on each rank, on a device of its own.
template <class F> outcomes on_threads(int ranks, F f, milliseconds deadline = milliseconds(60'000)) {
  return pl::run_ranks_collecting(ranks,
                                  [&](pl::thread_communicator& threads) {
                                    cudaSetDevice(threads.rank());
                                    f(threads);
                                  },
                                  {deadline});
}

// Ranks that make their communicators themselves.
struct plain_threads {
  template <class F> static outcomes run(int ranks, F f, milliseconds deadline) {
    return on_threads(ranks, f, deadline);
  }
};
struct over_threads {
  using backend = nccl_ranks::backend;
  static pl::nccl_options options() {
    pl::nccl_options o;
    o.left_grace = milliseconds(200);
    return o;
  }
  template <class F> static outcomes run(int ranks, F f, milliseconds deadline) {
    return on_threads(
        ranks,
        [&](pl::thread_communicator& threads) {
          pl::nccl_communicator comm{threads, options()};
          f(comm);
        },
        deadline);
  }
};

inline void nobody_failed(const outcomes& all) {
  for (const auto& o : all) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}
// Each rank that is known here has failed, and its text says all of these.
inline void all_say(const outcomes& all, std::initializer_list<const char*> words) {
  for (const auto& o : all) {
    REQUIRE(o.has_value());
    CAPTURE(o->text);
    for (const char* w : words) CHECK(o->text.find(w) != std::string::npos);
  }
}

} // namespace nccl_ranks
