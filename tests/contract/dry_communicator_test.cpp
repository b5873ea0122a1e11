// SPDX-License-Identifier: Apache-2.0
//
// The communicator of a dry run, held to what the communicator's contract says without looking at what was
// moved: groups, integers, votes, failures. Left out are the functions that compare received values, those
// whose host tasks fail on a stream (a dry run runs none), and the copies of peers, of which there are none.
// Sizes that differ between ranks are found later than elsewhere, when the ranks' programs meet in predict().
#include "communicator_failures.hpp"

#include <plateau/checks.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

namespace pl = plateau;

// The contract makes its backends without a word about ranks: the rank's communicator is found here.
thread_local pl::dry_communicator* of_this_rank = nullptr;

struct dry {
  static constexpr bool without_data = true;
  struct backend : pl::dry_run<pl::host_backend> {
    backend() : dry_run(*of_this_rank) {}
  };
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds deadline) {
    const auto ran = pl::run_dry(ranks,
                                 [&f](pl::dry_communicator& comm) {
                                   of_this_rank = &comm;
                                   f(comm);
                                 },
                                 {}, {deadline});
    return ran.left_with;
  }
};
static_assert(pl::check_communicator<pl::dry_communicator, pl::dry_run<pl::host_backend>>());

} // namespace

TEST_CASE("dry: host exchange") { contract::host_exchanges<dry>(); }
TEST_CASE("dry: groups") { contract::groups<dry>(); }
TEST_CASE("D11: dry: votes: whose capacities differ, or who has no memory, is named on every rank") {
  contract::votes<dry>();
}
TEST_CASE("P3: dry: a rank throws between two operations: all get its cause") {
  contract::one_rank_throws<dry>();
}
TEST_CASE("dry: a rank returns early") { contract::one_rank_returns_early<dry>(); }
TEST_CASE("dry: a rank sleeps past the deadline") { contract::one_rank_sleeps<dry>(); }
TEST_CASE("dry: progress restarts deadlines") { contract::progress_restarts_deadlines<dry>(); }
TEST_CASE("dry: lengths differ") { contract::lengths_differ<dry>(); }
TEST_CASE("P2: dry: ranks start collectives in different orders: both operations are named") {
  contract::orders_differ<dry>();
  contract::circle_between_communicators<dry>();
}
TEST_CASE("dry: latched failures surface at close_step") { contract::latched_failures_surface<dry>(); }

TEST_CASE("D11: dry: capacities 3 and 4: predict() names both ranks, both sizes and both lines") {
  struct scenario {
    pl::index_t sent, expected;
    const char* text;
  };
  using backend_t = pl::dry_run<pl::host_backend>;
  for (const scenario c :
       {scenario{3, 4,
                 "send 0 of rank 2 to rank 3 has 12 bytes, the receive of rank 3 that it meets expects 16"},
        scenario{4, 3,
                 "send 0 of rank 2 to rank 3 has 16 bytes, the receive of rank 3 that it meets expects 12"},
        scenario{4, 0, "send 0 of rank 2 to rank 3 (16 bytes) is received by nobody"},
        scenario{0, 4, "receive 0 of rank 3 from rank 2 (16 bytes) is sent by nobody"}}) {
    CAPTURE(c.sent);
    CAPTURE(c.expected);
    int line = 0;
    const auto ran = pl::run_dry(4, [&](pl::dry_communicator& comm) {
      backend_t backend(comm);
      const int me = comm.rank();
      pl::device_buffer<float, backend_t> a(backend.device(), 16, pl::tag::other),
          b(backend.device(), 16, pl::tag::other);
      auto s = backend.make_stream("s");
      backend.launch(s, pl::elements{16}, pl::fill<float>{1}, out(a.all()));
      if (me == 0) line = __LINE__ + 1;
      comm.exchange(s, {send_to((me + 1) % 4, a.first(me == 2 ? c.sent : 5))},
                    {receive_from((me + 3) % 4, b.first(me == 3 ? c.expected : 5))}, "dispatch");
      comm.close_step();
    });
    CHECK_FALSE(ran.cause); // nothing was moved, so nothing has failed yet
    CHECK(ran.findings().empty());
    const auto t = pl::predict(ran, plateau_test::slow_machine());
    CHECK_FALSE(t.complete);
    CAPTURE(t.trouble);
    CHECK(t.trouble.find(c.text) != std::string::npos);
    for (const char* rank : {"rank 2: 'dispatch'", "rank 3: 'dispatch'"})
      CHECK(t.trouble.find(rank) != std::string::npos);
    const std::string place = "dry_communicator_test.cpp:" + std::to_string(line);
    CHECK(t.trouble.find(place) != std::string::npos);
    CHECK(t.trouble.find(place) != t.trouble.rfind(place)); // on both ranks
  }
}
