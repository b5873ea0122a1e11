// SPDX-License-Identifier: Apache-2.0
//
// Runs a function on ranks that are threads of this process, with any communicator that makes a group of such
// ranks. A rank that leaves by an exception, or returns while others wait for it, ends the others too, with
// its cause.
#pragma once

#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>

#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

static_assert(communicator<thread_communicator, host_backend>);

namespace detail {
// Runs f(comm) on one thread for each communicator of a group; outcome[r] is what rank r left with. Returns
// the group's failure.
template <class Communicator, class F>
std::optional<failure> run_group(std::vector<Communicator>& group, F& f,
                                 std::vector<std::optional<failure>>& outcome) {
  outcome.assign(group.size(), std::nullopt);
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (std::size_t r = 0; r < group.size(); ++r) {
    try {
      threads.emplace_back([&comm = group[r], &left_with = outcome[r], &f] {
        try {
          f(comm);
        } catch (...) {
          left_with = failure::current();
          comm.abort(*left_with);
        }
        comm.leave();
      });
    } catch (const std::system_error& e) {
      group[r].abort(
          {failure::kind::backend, std::string("no thread for this rank: ") + e.what(), -1, "run_ranks"});
      for (; r < group.size(); ++r) group[r].leave(); // nobody comes for these
    }
  }
  for (std::thread& t : threads) t.join();
  return group.front().cause();
}
} // namespace detail

// Runs f(comm) on `ranks` threads, each with its Communicator&. Returns when all have ended; throws the first
// cause as collective_error when any of them failed.
template <class Communicator = thread_communicator, class F>
void run_ranks(int ranks, F&& f, typename Communicator::options options = {}) {
  auto group = Communicator::make_group(ranks, options);
  std::vector<std::optional<failure>> outcome;
  if (const auto cause = detail::run_group(group, f, outcome)) cause->raise();
}

// The same for those who want to see each rank's end: what rank r left with, nothing if it returned.
template <class Communicator = thread_communicator, class F>
std::vector<std::optional<failure>> run_ranks_collecting(int ranks, F&& f,
                                                         typename Communicator::options options = {}) {
  auto group = Communicator::make_group(ranks, options);
  std::vector<std::optional<failure>> outcome;
  detail::run_group(group, f, outcome);
  return outcome;
}

} // namespace plateau::inline v0
