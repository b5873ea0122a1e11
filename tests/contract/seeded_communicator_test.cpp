// SPDX-License-Identifier: Apache-2.0
//
// The seeded communicator, held to the communicator's contract under a few seeds, with seeded and with
// audited backends. Left out are a rank that sleeps past the deadline and the restart of deadlines by
// progress: a rank that sleeps keeps the token, so nobody else waits meanwhile, and there are no deadlines.
#include "communicator_failures.hpp"

#include <plateau/checks.hpp>
#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

namespace {

// The contract makes its backends without a word about ranks: the rank's communicator is found here.
thread_local const plateau::seeded_communicator* of_this_rank = nullptr;

template <std::uint64_t Seed, class Backend = plateau::seeded_backend> struct seeded {
  struct backend : Backend {
    backend() : Backend(*of_this_rank) {}
  };
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds) {
    return plateau::run_seeded_collecting(ranks, {Seed, nullptr}, [&f](plateau::seeded_communicator& comm) {
      of_this_rank = &comm;
      f(comm);
    });
  }
};
static_assert(plateau::check_communicator<plateau::seeded_communicator, plateau::seeded_backend>());

using zero = seeded<0>;
using one = seeded<1>;
using two = seeded<2>;
using audited = seeded<3, plateau::audited_backend>;

} // namespace

TEST_CASE_TEMPLATE("seeded: exchanges", fixture, zero, one, two, audited) {
  SUBCASE("ring") { contract::exchange_ring<fixture>(); }
  SUBCASE("all to all") { contract::exchange_all_to_all<fixture>(); }
  SUBCASE("pieces") { contract::exchange_pieces<fixture>(); }
  SUBCASE("long lists") { contract::exchange_long_lists<fixture>(); }
  SUBCASE("nothing") { contract::exchange_nothing<fixture>(); }
  SUBCASE("in order of issue") { contract::order_of_issue<fixture>(); }
}
TEST_CASE_TEMPLATE("seeded: integers and groups", fixture, zero, one, two) {
  SUBCASE("host exchange") { contract::host_exchanges<fixture>(); }
  SUBCASE("split") { contract::splits<fixture>(); }
  SUBCASE("votes") { contract::votes<fixture>(); }
}
TEST_CASE("seeded: sums in rank order") {
  contract::sums_of<float, zero>();
  contract::sums_of<std::int64_t, one>();
  contract::sums_of<float, audited>();
}
TEST_CASE_TEMPLATE("seeded: failures", fixture, zero, one, two, audited) {
  SUBCASE("a rank throws between two operations, on the host or on a stream") {
    contract::one_rank_throws<fixture>();
  }
  SUBCASE("a rank returns early") { contract::one_rank_returns_early<fixture>(); }
  SUBCASE("sizes differ") { contract::sizes_differ<fixture>(); }
  SUBCASE("orders differ") { contract::orders_differ<fixture>(); }
  SUBCASE("a circle between communicators") { contract::circle_between_communicators<fixture>(); }
  SUBCASE("latched failures surface at close_step") { contract::latched_failures_surface<fixture>(); }
  SUBCASE("what fails on a stream surfaces at close_step") { contract::stream_failures_surface<fixture>(); }
}
TEST_CASE("seeded: buffers outlive the copies of peers") { contract::buffers_outlive_copies<zero>(); }
