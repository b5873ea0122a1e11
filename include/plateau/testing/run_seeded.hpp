// SPDX-License-Identifier: Apache-2.0
//
// Runs a function on ranks that take turns, in an order that a seed decides. Each rank makes its backend from
// its communicator:
//
//   for (std::uint64_t seed = 0; seed < 1000; ++seed)
//     plateau::run_seeded(4, seed, [&](auto& comm) {
//       plateau::seeded_backend backend{comm};
//       ...
//     });
//
// A rank's code runs on a thread of its own, but only while no other rank's does; it must not start threads
// that use its backend. Where it sleeps or waits for another rank outside the communicator, nobody else runs.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/seeded_backend.hpp>
#include <plateau/testing/seeded_communicator.hpp>

#include <optional>
#include <vector>

namespace plateau::inline v0 {

static_assert(communicator<seeded_communicator, seeded_backend>);

namespace detail {
template <class F>
std::optional<failure> run_seeded(int ranks, const seeded_options& options, F& f,
                                  std::vector<std::optional<failure>>& outcome) {
  auto group = seeded_communicator::make_group(ranks, options);
  const auto in_turn = [&f](seeded_communicator& comm) {
    testing::schedule& world = *comm.world()->schedule();
    world.enter(comm.rank());
    try {
      f(comm);
    } catch (...) {
      comm.abort(failure::current());
      world.end(comm.rank());
      throw;
    }
    comm.leave();
    world.end(comm.rank());
  };
  return run_group(group, in_turn, outcome);
}
} // namespace detail

// Runs f(comm) on `ranks` ranks, each with its seeded_communicator&. Returns when all have ended; throws the
// first cause as collective_error when any of them failed.
template <class F> void run_seeded(int ranks, const seeded_options& options, F&& f) {
  std::vector<std::optional<failure>> outcome;
  if (const auto cause = detail::run_seeded(ranks, options, f, outcome)) cause->raise();
}
template <class F> void run_seeded(int ranks, std::uint64_t seed, F&& f) {
  run_seeded(ranks, seeded_options{seed, nullptr}, f);
}

// The same for those who want to see each rank's end: what rank r left with, nothing if it returned.
template <class F>
std::vector<std::optional<failure>> run_seeded_collecting(int ranks, const seeded_options& options, F&& f) {
  std::vector<std::optional<failure>> outcome;
  detail::run_seeded(ranks, options, f, outcome);
  return outcome;
}

} // namespace plateau::inline v0
