// SPDX-License-Identifier: Apache-2.0
//
// Kernels that belong to the model as a whole: random initial weights, the sum of the tokens' losses, and the
// value of the load-balancing loss.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace moe {

using plateau::index_t;

// weights[i] = mean + deviation * z, z near a standard normal: the sum of four uniform 16-bit numbers drawn
// from one splitmix64 step (Steele, Lea & Flood 2014) of (seed, i). Integers until the last step, so the bits
// are the same on every machine, and do not depend on how a tensor is cut.
struct random_weights {
  static constexpr std::uint64_t step = 0x9e3779b97f4a7c15U; // of the seed, from one weight to the next

  std::uint64_t seed;
  float mean, deviation;

  template <class S> PLATEAU_HD void operator()(index_t i, plateau::view<float, S> weights) const {
    std::uint64_t x = seed + (static_cast<std::uint64_t>(i) + 1) * step;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    x ^= x >> 31;
    const auto sum =
        static_cast<std::int32_t>((x & 0xffffU) + (x >> 16 & 0xffffU) + (x >> 32 & 0xffffU) + (x >> 48));
    // mean 4 * 65535 / 2; the variance of each is 65536^2 / 12
    const float z = static_cast<float>(sum - 131070) * (1.7320508F / 65536.0F);
    weights[i] = mean + deviation * z;
  }
};

// Over rows{1}: the sum in double, of the losses of a step.
struct sum_values {
  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t, plateau::view<const float, S> values, // (n)
                             plateau::view<double, S> sum) const {                      // (1), written
    const float* from = values.p;
    const double total =
        team.reduce(values.n, 0.0, plateau::plus{}, [=](index_t i) { return static_cast<double>(from[i]); });
    team.once([=] { sum[0] = total; });
  }
};

// value[0] += scale * sum over e of probability[e] * load[e]
struct add_balance {
  double scale;

  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t, plateau::view<const float, S> probability,
                             plateau::view<const float, S> load, plateau::view<double, S> value) const {
    const double sum = team.reduce(probability.n, 0.0, plateau::plus{}, [=](index_t e) {
      return static_cast<double>(probability[e]) * static_cast<double>(load[e]);
    });
    team.once([&] { value[0] += scale * sum; });
  }
};

} // namespace moe
