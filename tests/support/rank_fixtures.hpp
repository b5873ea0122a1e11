// SPDX-License-Identifier: Apache-2.0
//
// One rank program, several kinds of ranks: threads with a backend of any kind, ranks that take turns in an
// order drawn from a seed, and ranks without data. Each calls f(communicator, backend) on every rank.
#pragma once

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <string>
#include <utility>

namespace support {

namespace pl = plateau;

template <class Backend = pl::host_backend, class Communicator = pl::thread_communicator> struct on_threads {
  using backend = Backend;
  using communicator = Communicator;
  static constexpr bool has_data = true;

  typename Communicator::options options{};

  // Throws collective_error with the first cause when a rank fails.
  template <class F> void run(int ranks, F f) const {
    pl::run_ranks<communicator>(
        ranks,
        [&](communicator& world) {
          const std::string owner = "rank " + std::to_string(world.rank());
          Backend of_rank(owner.c_str());
          f(world, of_rank);
        },
        options);
  }
};

template <class Backend = pl::seeded_backend> struct in_turns {
  using backend = Backend;
  using communicator = pl::seeded_communicator;
  static constexpr bool has_data = true;

  pl::seeded_options options{};

  // Throws as on_threads.
  template <class F> void run(int ranks, F f) const {
    pl::run_seeded(ranks, options, [&](communicator& world) {
      Backend of_rank(world);
      f(world, of_rank);
    });
  }
};

template <class ScratchModel = pl::host_backend> struct without_data {
  using backend = pl::dry_run<ScratchModel>;
  using communicator = pl::dry_communicator;
  static constexpr bool has_data = false;

  pl::dry_options options{};
  pl::dry_ranks* ran = nullptr; // gets how the ranks ended and what they recorded

  // Throws as on_threads, where nobody wants to know how the ranks ended.
  template <class F> void run(int ranks, F f) const {
    pl::dry_ranks result = pl::run_dry(
        ranks,
        [&](communicator& world) {
          backend of_rank(world);
          f(world, of_rank);
        },
        options);
    if (ran == nullptr && result.cause) result.cause->raise();
    if (ran != nullptr) *ran = std::move(result);
  }
};

} // namespace support
