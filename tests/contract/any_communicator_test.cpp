// SPDX-License-Identifier: Apache-2.0
//
// A communicator behind any_communicator is held to the contract that the plain one is held to.
#include "communicator_failures.hpp"

#include <plateau/any_communicator.hpp>
#include <plateau/checks.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

namespace {
struct behind_any {
  using backend = plateau::host_backend;
  using any = plateau::any_communicator<backend::stream>;
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds deadline) {
    const auto on_rank = [&](plateau::thread_communicator& comm) {
      any borrowed(&comm);
      f(borrowed);
    };
    return plateau::run_ranks_collecting(ranks, on_rank, {deadline});
  }
};
static_assert(plateau::communicator<behind_any::any, behind_any::backend>);
static_assert(plateau::check_communicator<behind_any::any, behind_any::backend>());
static_assert(std::is_nothrow_move_constructible_v<behind_any::any>);
static_assert(!std::is_copy_constructible_v<behind_any::any>);
} // namespace

TEST_CASE("any communicator: what succeeds") {
  contract::exchange_ring<behind_any>();
  contract::exchange_all_to_all<behind_any>();
  contract::host_exchanges<behind_any>();
  contract::splits<behind_any>();
  contract::sums_of<float, behind_any>();
}
TEST_CASE("any communicator: what fails") {
  contract::one_rank_throws<behind_any>();
  contract::sizes_differ<behind_any>();
  contract::latched_failures_surface<behind_any>();
  contract::votes<behind_any>();
}
TEST_CASE("any communicator: one that it owns") {
  auto group = plateau::thread_communicator::make_group(1);
  behind_any::any comm(std::move(group.front()));
  behind_any::any part = comm.split(0, 0), none = comm.split(-1, 0);
  CHECK(comm.size() == 1);
  CHECK(part.rank() == 0);
  CHECK(none.size() == 0);
  CHECK(comm.counters().host_exchanges == 2);
}
TEST_CASE("any communicator: what is inside can be reached, by its type alone") {
  auto group = plateau::thread_communicator::make_group(1);
  const behind_any::any borrowed(&group.front());
  CHECK(borrowed.target<plateau::thread_communicator>() == &group.front());
  CHECK(borrowed.target<behind_any::any>() == nullptr);
  behind_any::any owner(std::move(group.front()));
  CHECK(owner.target<plateau::thread_communicator>() != nullptr);
  CHECK(owner.target<plateau::thread_communicator>()->size() == 1);
}
