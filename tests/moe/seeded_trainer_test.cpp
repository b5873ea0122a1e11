// SPDX-License-Identifier: Apache-2.0
//
// Training steps on ranks that take turns, with any of the peaks flattened: weights, moments and losses are
// those of the host backend under any order of operations.
#include "chosen_peaks.hpp"
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

// Two layers, of which the first one's input is parked; whatever is cut into pieces has more than one.
training_case flattened_case(moe::rank_grid grid, int combination) {
  training_case c = small_case(grid);
  c.config.layers = 2;
  c.config.flatten = {(combination & 1) != 0, (combination & 2) != 0, (combination & 4) != 0,
                      (combination & 8) != 0};
  c.config.dispatch = {7, 7, 2, moe::expert_placement::least_loaded, 1};
  c.config.loss = {4, 8, 4, pl::rotation::automatic};
  c.config.optimizer = {20000, 2, pl::update_on::device, false};
  c.settings.context = 3;
  c.settings.batch = 3;
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

// Wherever the optimizer has it.
template <class Trainer> test::state_values whole_state_of(Trainer& train) {
  test::state_values out;
  for (const moe::parameter_group* group : train.model().layout().groups())
    for (const moe::parameter& p : group->all())
      for (int which = 0; which < 3; ++which) {
        pl::pinned_buffer<float, typename Trainer::backend_type> to(train.backend().pinned(), p.elements(),
                                                                    pl::tag::other);
        train.optimizer().get(train.stream(), *group, p, which, 0, to.all());
        train.backend().wait(train.backend().record(train.stream()));
        out[std::to_string(which) + p.name].assign(to.all().p, to.all().p + to.size());
      }
  return out;
}

template <class T, class Ranks = support::on_threads<>>
trained three_steps(const training_case& c, const Ranks& on = {}) {
  static const moe::corpus text = test::random_text(c.config.vocabulary, 300, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  trained out;
  out.states.resize(static_cast<std::size_t>(c.grid.ranks));
  test::train_on_ranks<T, moe::chosen_peaks>(
      c,
      [&](auto& train) {
        const int rank = train.world().rank();
        for (int step = 0; step < 3; ++step) {
          const double loss = train.run_step(sampler, step).loss;
          train.world().close_step();
          if (rank == 0) out.losses.push_back(loss);
        }
        out.states[static_cast<std::size_t>(rank)] = whole_state_of(train);
      },
      on);
  return out;
}

template <class T> trained same_under_seeds(const training_case& c, std::uint64_t seeds) {
  const trained expected = three_steps<T>(c);
  REQUIRE(expected.losses.size() == 3);
  CHECK(expected.losses[2] != expected.losses[0]);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    CHECK((three_steps<T>(c, support::in_turns<>{{seed, nullptr}}) == expected));
  }
  return expected;
}

} // namespace

TEST_CASE("three steps leave the same bits under any order of their operations") {
  same_under_seeds<float>(small_case({1, 1}), 15);
  same_under_seeds<float>(small_case({2, 2}), 15);
  same_under_seeds<float>(small_case({4, 2}), 15);
}

// Parked inputs and streamed state move bits: they leave those of the run that keeps them on the device. A
// head that is divided over the ranks has parts of its own on each.
TEST_CASE("so they do with any combination of peaks") {
  std::vector<trained> of_sums;
  for (int combination = 0; combination < 16; ++combination) {
    CAPTURE(combination);
    const trained each = same_under_seeds<float>(flattened_case({2, 2}, combination), 3);
    if (combination < 4) of_sums.push_back(each);
    CHECK((each == of_sums[static_cast<std::size_t>(combination % 4)]));
  }
  same_under_seeds<float>(flattened_case({4, 2}, 15), 8);
}
