// SPDX-License-Identifier: Apache-2.0
//
// AdamW with its state dealt to processes: the bits of loops on one rank.
#include "support/sharded_adamw_case.hpp"

#include "mpi_rig.hpp"

namespace pl = plateau;
using namespace support::sharded;

namespace {

using mpi_rig::on_processes;

} // namespace

TEST_CASE("mpi on up to 4 ranks: state and parameters have the bits of one AdamW that has everything") {
  mpi_rig::as_far_as_possible([] {
    for (const int ranks : {1, 2, 4})
      for (const auto state : {pl::adamw_state_of::own_shard, pl::adamw_state_of::all}) {
        CAPTURE(ranks);
        adamw_case c;
        c.ranks = ranks;
        c.group = ranks > 1 ? 2 : 1;
        c.shape.state = state;
        c.idle_expert = true;
        const auto found = run_case<pl::bfloat16>(c, on_processes{});
        if (mpi_rig::process() < ranks) check_case<pl::bfloat16>(c, found, mpi_rig::process());
      }
  });
}
