// SPDX-License-Identifier: Apache-2.0
//
// The dispatch between processes: the bits that ranks as threads have.
#include "support/dispatch_checks.hpp"

#include "mpi_rig.hpp"

namespace pl = plateau;

namespace {

// Every process checks its own rank: the results of the others are not here.
template <class T> void check_own(const support::dispatch_case& c) {
  const auto outcomes = mpi_rig::run(
      c.ranks(),
      [&](pl::mpi_communicator& comm) {
        pl::host_backend backend;
        support::dispatch_rank<T, pl::host_backend, pl::mpi_communicator> rank(c, backend, comm);
        pl::dispatch_plan plan;
        rank.plan(plan);
        rank.forward(plan);
        rank.backward(plan);
        const auto found = rank.results();
        const auto expected = support::oracle_of<T>(c, comm.rank());
        if (!support::same_as_exact(found.out, expected.out) ||
            !support::same_as_exact(found.drows, expected.drows) ||
            !support::same_as_exact(found.dgates, expected.dgates) ||
            !support::same_as_exact(found.dweights, expected.dweights))
          throw pl::error("the results are not those of float64");
      },
      pl::mpi_options{});
  for (const auto& o : outcomes) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}

} // namespace

TEST_CASE("mpi on up to 4 ranks: rows go to their experts and come back") {
  mpi_rig::as_far_as_possible([] {
    const std::vector<pl::index_t> tokens{20, 0, 33, 1};
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const char* name : {"hot rank", "holes", "all to one", "spread"}) {
        CAPTURE(ranks);
        CAPTURE(name);
        auto c = support::dispatch_of({tokens.begin(), tokens.begin() + ranks}, 6, 2, name);
        for (const int slots : {1, 2, 3}) {
          CAPTURE(slots);
          c.shape.slots = slots;
          c.shape.ordered = false;
          check_own<float>(c);
          c.shape.ordered = true;
          check_own<pl::bfloat16>(c);
        }
      }
  });
}
