// SPDX-License-Identifier: Apache-2.0
//
// Random dispatches with every option at random, each result compared with the exact one by its bits.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;

namespace {

class generator {
 public:
  explicit generator(std::uint64_t seed) : engine_(seed) {}

  dispatch_case next() {
    dispatch_case c;
    const int ranks = static_cast<int>(up_to(1, 8));
    const auto experts = static_cast<int>(chance(2) ? up_to(1, 12) : up_to(1, 512));
    const auto top_k = static_cast<int>(up_to(1, 8));
    pl::dispatch_shape<1>& s = c.shape;
    s.experts = experts;
    s.top_k = top_k;
    s.widths = {up_to(1, 9)};
    s.send_cap_rows = cap();
    s.receive_cap_rows = chance(2) ? s.send_cap_rows : cap();
    s.slots = static_cast<int>(up_to(1, 3));
    s.most_rounds = chance(5) ? up_to(1, 6) : 0;
    s.rounds = static_cast<pl::round_policy>(up_to(0, 2));
    s.order = chance(2) ? pl::row_order::strided : pl::row_order::contiguous;
    s.ordered = chance(3);
    s.measure_stalls = chance(4);
    s.placement.policy =
        chance(4) ? pl::placement_policy::native : pl::placement_policy::bounded_least_loaded;
    if (chance(8)) { // it minds no bound: room for all that there are
      s.placement.policy = pl::placement_policy::published_least_loaded;
      s.placement.foreign_experts = experts;
    } else {
      s.placement.foreign_experts = up_to(0, 5);
    }
    s.placement.least_piece_rows = chance(2) ? 1 : up_to(1, 300);
    s.placement.weight_move_rows = chance(3) ? up_to(0, 60) : 0;
    s.placement.capacity_millionths = chance(3) ? up_to(1'000'000, 2'000'000) : 1'000'000;
    s.placement.threshold_millionths = chance(3) ? up_to(0, 3'000'000) : 1'000'000;
    c.no_gates = chance(4);
    // Tokens beside a multiple of the cap, none, or any number.
    const index_t near = std::min<index_t>(200, s.send_cap_rows * up_to(1, 3) / top_k);
    for (int r = 0; r < ranks; ++r)
      c.tokens.push_back(chance(5)   ? 0
                         : chance(2) ? std::clamp<index_t>(near + up_to(-1, 1), 0, 200)
                                     : up_to(0, chance(3) ? 200 : 40));
    s.tokens = chance(2) ? up_to(0, 50) : 0; // more than there are
    const std::string name = support::dispatch_workloads[static_cast<std::size_t>(up_to(0, 7))];
    const auto where = support::workload(name, ranks, experts, top_k);
    c.expert_of = [where, experts](int rank, index_t t, index_t j) {
      return std::min(where(rank, t, j), experts - 1); // the hot set is two experts
    };
    return c;
  }

 private:
  index_t up_to(index_t least, index_t most) {
    return least + static_cast<index_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(index_t one_in) { return up_to(1, one_in) == 1; }
  index_t cap() { return chance(3) ? up_to(1, 8) : chance(8) ? 100000 : up_to(8, 120); }

  std::mt19937_64 engine_;
};

} // namespace

TEST_CASE("300 random dispatches") {
  const support::on_threads<> threads;
  std::uint64_t moved = 0, rounds = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    const dispatch_case c = generator(seed).next();
    const auto found = support::run_dispatch<float>(c, threads);
    for (int r = 0; r < c.ranks(); ++r) {
      CAPTURE(r);
      const auto expected = support::oracle_of<float>(c, r);
      const auto& mine = found[static_cast<std::size_t>(r)];
      CHECK(support::same_as_exact(mine.out, expected.out));
      CHECK(support::same_as_exact(mine.drows, expected.drows));
      CHECK(support::same_as_exact(mine.dgates, expected.dgates));
      CHECK(support::same_as_exact(mine.dweights, expected.dweights));
      CHECK(mine.forward.rounds == found[0].forward.rounds);
      if (c.shape.most_rounds > 0) CHECK(mine.forward.rounds <= c.shape.most_rounds);
    }
    moved += static_cast<std::uint64_t>(found[0].forward.moved_experts);
    rounds += static_cast<std::uint64_t>(found[0].forward.rounds);
  }
  // What is random is not all of one kind.
  CHECK(moved > 300);
  CHECK(rounds > 3000);
}
