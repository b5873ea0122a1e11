// SPDX-License-Identifier: Apache-2.0
//
// mpi_communicator, held to the communicator's contract.
#include "contract/communicator_failures.hpp"

#include "mpi_rig.hpp"

#include <plateau/checks.hpp>
#include <plateau/host/backend.hpp>

namespace {
using mpi_rig::as_far_as_possible;
using processes = mpi_rig::ranks_of_mpi;
static_assert(plateau::check_communicator<plateau::mpi_communicator, processes::backend>());
} // namespace

TEST_CASE("mpi on up to 4 ranks: exchange ring") { as_far_as_possible(contract::exchange_ring<processes>); }
TEST_CASE("mpi on up to 4 ranks: exchange all to all") {
  as_far_as_possible(contract::exchange_all_to_all<processes>);
}
TEST_CASE("mpi on up to 4 ranks: exchange pieces") {
  as_far_as_possible(contract::exchange_pieces<processes>);
}
TEST_CASE("mpi on up to 4 ranks: exchange long lists") {
  as_far_as_possible(contract::exchange_long_lists<processes>);
}
TEST_CASE("mpi on up to 4 ranks: exchange nothing") {
  as_far_as_possible(contract::exchange_nothing<processes>);
}
TEST_CASE("mpi on 4 ranks: exchanges match in order of issue") { contract::order_of_issue<processes>(); }
TEST_CASE("mpi on up to 5 ranks: host exchange") { as_far_as_possible(contract::host_exchanges<processes>); }
TEST_CASE("mpi on 6 ranks: split") { contract::splits<processes>(); }
TEST_CASE("mpi on up to 5 ranks: sums in rank order, float") {
  as_far_as_possible(contract::sums_of<float, processes>);
}
TEST_CASE("mpi on up to 5 ranks: sums in rank order, int64") {
  as_far_as_possible(contract::sums_of<std::int64_t, processes>);
}

TEST_CASE("mpi on 4 ranks: P3: a rank throws between two operations, on the host or on a stream: all get its "
          "cause") {
  contract::one_rank_throws<processes>();
}
TEST_CASE("mpi on 4 ranks: a rank returns early") { contract::one_rank_returns_early<processes>(); }
TEST_CASE("mpi on 4 ranks: a rank sleeps past the deadline") { contract::one_rank_sleeps<processes>(); }
TEST_CASE("mpi on 3 ranks: progress restarts deadlines") {
  contract::progress_restarts_deadlines<processes>();
}
TEST_CASE("mpi on 4 ranks: sizes differ") { contract::sizes_differ<processes>(); }
TEST_CASE("mpi on 3 ranks: P2: ranks start collectives in different orders: both operations are named") {
  contract::orders_differ<processes>();
}
TEST_CASE("mpi on 2 ranks: P2: the same in two communicators: the deadline finds the circle") {
  contract::circle_between_communicators<processes>();
}
TEST_CASE("mpi on 3 ranks: latched failures surface at close_step") {
  contract::latched_failures_surface<processes>();
}
TEST_CASE("mpi on 3 ranks: what fails on a stream surfaces at close_step, though nobody waits for it") {
  contract::stream_failures_surface<processes>();
}
TEST_CASE("mpi on 4 ranks: buffers outlive the copies of peers") {
  contract::buffers_outlive_copies<processes>();
}
TEST_CASE("mpi on 4 ranks: votes") { contract::votes<processes>(); }
