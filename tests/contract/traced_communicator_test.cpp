// SPDX-License-Identifier: Apache-2.0
//
// A traced communicator does what a communicator must do, when all goes well and when something fails.
#include "communicator_failures.hpp"

#include <plateau/checks.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/trace/traced_communicator.hpp>

namespace {
struct owned_recorder {
  plateau::trace_recorder recorder{0};
};
using base = plateau::traced_backend<plateau::host_backend>;

struct traced_threads {
  // As the suite makes its backends: by default.
  struct backend : private owned_recorder, base {
    backend() : base(owned_recorder::recorder) {}
  };
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds deadline) {
    return plateau::run_ranks_collecting(
        ranks,
        [&](plateau::thread_communicator& threads) {
          backend its_backend;
          plateau::traced_communicator<plateau::thread_communicator, base> comm(threads, its_backend);
          f(comm);
        },
        {deadline});
  }
};
static_assert(plateau::communicator<plateau::traced_communicator<plateau::thread_communicator, base>,
                                    traced_threads::backend>);
} // namespace

TEST_CASE("traced: exchange ring") { contract::exchange_ring<traced_threads>(); }
TEST_CASE("traced: exchange all to all") { contract::exchange_all_to_all<traced_threads>(); }
TEST_CASE("traced: exchange pieces") { contract::exchange_pieces<traced_threads>(); }
TEST_CASE("traced: exchange long lists") { contract::exchange_long_lists<traced_threads>(); }
TEST_CASE("traced: exchange nothing") { contract::exchange_nothing<traced_threads>(); }
TEST_CASE("traced: exchanges match in order of issue") { contract::order_of_issue<traced_threads>(); }
TEST_CASE("traced: host exchange") { contract::host_exchanges<traced_threads>(); }
TEST_CASE("traced: split") { contract::splits<traced_threads>(); }
TEST_CASE("traced: sums in rank order, float") { contract::sums_of<float, traced_threads>(); }
TEST_CASE("traced: sums in rank order, int64") { contract::sums_of<std::int64_t, traced_threads>(); }
TEST_CASE("traced: a rank throws between two operations, on the host or on a stream: all get its cause") {
  contract::one_rank_throws<traced_threads>();
}
TEST_CASE("traced: a rank returns early") { contract::one_rank_returns_early<traced_threads>(); }
TEST_CASE("traced: a rank sleeps past the deadline") { contract::one_rank_sleeps<traced_threads>(); }
TEST_CASE("traced: progress restarts deadlines") { contract::progress_restarts_deadlines<traced_threads>(); }
TEST_CASE("traced: sizes differ") { contract::sizes_differ<traced_threads>(); }
TEST_CASE("traced: ranks start collectives in different orders: both operations are named") {
  contract::orders_differ<traced_threads>();
  contract::circle_between_communicators<traced_threads>();
}
TEST_CASE("traced: latched failures surface at close_step") {
  contract::latched_failures_surface<traced_threads>();
}
TEST_CASE("traced: what fails on a stream surfaces at close_step, though nobody waits for it") {
  contract::stream_failures_surface<traced_threads>();
}
TEST_CASE("traced: buffers outlive the copies of peers") {
  contract::buffers_outlive_copies<traced_threads>();
}
TEST_CASE("traced: votes") { contract::votes<traced_threads>(); }
