// SPDX-License-Identifier: Apache-2.0
//
// How far apart the losses of two runs may be that only group their sums differently. Training magnifies a
// rounding, by how much depends on the shape; so the yardstick is a third run whose initial weights were
// moved by one rounding each, here and there.
#pragma once

#include "trainer_on_ranks.hpp"

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace test {

// weights[i] becomes its neighbour above or below, or stays, by a hash of (seed, i). Values of any sign; zero
// and what is not finite stay.
struct moved_by_a_rounding {
  std::uint64_t seed;

  PLATEAU_HD void operator()(pl::index_t i, pl::view<float> weights) const {
    std::uint64_t x = seed + (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    const int step = static_cast<int>((x >> 40) % 3) - 1;
    const auto bits = pl::bit_cast<std::uint32_t>(weights[i]);
    if (weights[i] == 0 || (bits & 0x7f800000U) == 0x7f800000U) return;
    weights[i] = pl::bit_cast<float>(bits + static_cast<std::uint32_t>(step));
  }
};

// The loss of each step of a run; `move` other than 0 moves the initial weights, the same on every rank.
template <class T, class Ranks = support::on_threads<>>
std::vector<double> losses_of(const training_case& c, const moe::token_sampler& sampler, std::int64_t steps,
                              std::uint64_t move = 0, const Ranks& on = {}) {
  std::vector<double> losses;
  train_on_ranks<T>(
      c,
      [&](auto& train) {
        if (move != 0) {
          for (const moe::parameter_group* group :
               {&train.model().layout().shared, &train.model().layout().expert})
            for (const moe::parameter& p : group->all()) {
              std::uint64_t hash = move;
              for (const char letter : p.name)
                hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
              const auto master = train.optimizer().master(*group, p);
              train.backend().launch(train.stream(), pl::elements{master.n}, moved_by_a_rounding{hash},
                                     pl::inout(master));
            }
          train.optimizer().publish(train.stream());
        }
        for (std::int64_t step = 0; step < steps; ++step) {
          const double loss = train.run_step(sampler, step).loss;
          if (train.world().rank() == 0) losses.push_back(loss);
        }
      },
      on);
  return losses;
}

// The root mean square of the differences from step `first` on; infinite where the lengths differ.
inline double distance(const std::vector<double>& a, const std::vector<double>& b, std::size_t first = 0) {
  if (a.size() != b.size() || a.size() <= first) return HUGE_VAL;
  double squares = 0;
  for (std::size_t i = first; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size() - first));
}

// A run long enough for roundings to grow, on a text that can be learned.
inline training_case rounding_case(moe::rank_grid grid) {
  training_case c;
  c.config.layers = 2;
  c.config.hidden = 64;
  c.config.heads = 4;
  c.config.kv_heads = 2;
  c.config.experts = 8;
  c.config.top_k = 2;
  c.config.intermediate = 96;
  c.config.vocabulary = 256;
  c.grid = grid;
  c.settings.context = 48;
  c.settings.batch = 8;
  c.settings.steps = 20;
  c.settings.warmup = 2;
  return c;
}
inline moe::corpus rounding_text(std::int64_t vocabulary) {
  moe::corpus text = random_text(vocabulary, 4000, 7);
  const std::vector<std::int32_t> once = text.tokens;
  for (int i = 0; i < 3; ++i) text.tokens.insert(text.tokens.end(), once.begin(), once.end());
  return text;
}

} // namespace test
