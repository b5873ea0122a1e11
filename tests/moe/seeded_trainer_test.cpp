// SPDX-License-Identifier: Apache-2.0
//
// Training steps with the optimizer on ranks that take turns: weights, moments and losses are those of the
// host backend under any order of operations, also in a step that is skipped.
#include "trainer_on_ranks.hpp"

#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pl = plateau;
using test::training_case;

namespace {

training_case small_case(moe::rank_grid grid) {
  training_case c = test::tiny_case(grid);
  c.config.layers = 1;
  c.config.experts = 4;
  c.config.balance_weight = 0.1F;
  c.settings.context = 5;
  c.settings.batch = 5;
  c.settings.accumulate = 2;
  c.settings.adamw.clip = 0.5F; // below the norm
  return c;
}

struct trained {
  std::vector<test::state_values> states; // by rank
  std::vector<double> losses;             // of rank 0

  friend bool operator==(const trained& a, const trained& b) {
    if (a.losses != b.losses || a.states.size() != b.states.size()) return false;
    for (std::size_t r = 0; r < a.states.size(); ++r)
      if (!test::same_bits(a.states[r], b.states[r])) return false;
    return true;
  }
};

template <class T, class Ranks = support::on_threads<>>
trained three_steps(const training_case& c, const Ranks& on = {}) {
  static const moe::corpus text = test::random_text(c.config.vocabulary, 300, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  trained out;
  out.states.resize(static_cast<std::size_t>(c.grid.ranks));
  test::train_on_ranks<T>(
      c,
      [&](auto& train) {
        const int rank = train.world().rank();
        for (int step = 0; step < 3; ++step) {
          const double loss = train.run_step(sampler, step).loss;
          train.world().close_step();
          if (rank == 0) out.losses.push_back(loss);
        }
        out.states[static_cast<std::size_t>(rank)] = test::state_of(train);
      },
      on);
  return out;
}

template <class T> void same_under_seeds(const training_case& c, std::uint64_t seeds) {
  const trained expected = three_steps<T>(c);
  REQUIRE(expected.losses.size() == 3);
  CHECK(expected.losses[2] != expected.losses[0]);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    CHECK((three_steps<T>(c, support::in_turns<>{{seed, nullptr}}) == expected));
  }
}

} // namespace

TEST_CASE("three steps leave the same bits under any order of their operations") {
  same_under_seeds<float>(small_case({1, 1}), 15);
  same_under_seeds<float>(small_case({2, 2}), 15);
  same_under_seeds<float>(small_case({4, 2}), 15);
}
