// SPDX-License-Identifier: Apache-2.0
#include "communicator_failures.hpp"

#include <plateau/checks.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

namespace {
struct threads {
  using backend = plateau::host_backend;
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds deadline) {
    return plateau::run_ranks_collecting(ranks, f, {deadline});
  }
};
static_assert(plateau::check_communicator<plateau::thread_communicator, threads::backend>());
} // namespace

TEST_CASE("threads: exchange ring") { contract::exchange_ring<threads>(); }
TEST_CASE("threads: exchange all to all") { contract::exchange_all_to_all<threads>(); }
TEST_CASE("threads: exchange pieces") { contract::exchange_pieces<threads>(); }
TEST_CASE("threads: exchange long lists") { contract::exchange_long_lists<threads>(); }
TEST_CASE("threads: exchange nothing") { contract::exchange_nothing<threads>(); }
TEST_CASE("threads: exchanges match in order of issue") { contract::order_of_issue<threads>(); }
TEST_CASE("threads: host exchange") { contract::host_exchanges<threads>(); }
TEST_CASE("threads: split") { contract::splits<threads>(); }
TEST_CASE("threads: sums in rank order, float") { contract::sums_of<float, threads>(); }
TEST_CASE("threads: sums in rank order, int64") { contract::sums_of<std::int64_t, threads>(); }

TEST_CASE(
    "threads: P3: a rank throws between two operations, on the host or on a stream: all get its cause") {
  contract::one_rank_throws<threads>();
}
TEST_CASE("threads: a rank returns early") { contract::one_rank_returns_early<threads>(); }
TEST_CASE("threads: a rank sleeps past the deadline") { contract::one_rank_sleeps<threads>(); }
TEST_CASE("threads: progress restarts deadlines") { contract::progress_restarts_deadlines<threads>(); }
TEST_CASE("threads: sizes differ") { contract::sizes_differ<threads>(); }
TEST_CASE("P2: threads: ranks start collectives in different orders: both operations are named") {
  contract::orders_differ<threads>();
  contract::circle_between_communicators<threads>();
}
TEST_CASE("threads: latched failures surface at close_step") {
  contract::latched_failures_surface<threads>();
}
TEST_CASE("threads: what fails on a stream surfaces at close_step, though nobody waits for it") {
  contract::stream_failures_surface<threads>();
}
TEST_CASE("threads: buffers outlive the copies of peers") { contract::buffers_outlive_copies<threads>(); }
TEST_CASE("threads: votes") { contract::votes<threads>(); }
