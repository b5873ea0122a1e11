// SPDX-License-Identifier: Apache-2.0
//
// The router as Mixtral has it: softmax over all experts in float, the k most probable, their probabilities
// renormalised to gates that sum to 1. The choice is made on logits, which order experts as their
// probabilities do but tell more of them apart; ties go to the lower id. Ids are distinct and in range
// whatever the logits are: a NaN ranks below everything, and shows in every gate of its row.
#pragma once

#include "types.hpp"

namespace moe {

inline constexpr int max_top_k = 16;

namespace detail {

// The softmax of a row as two numbers, the same on all members.
struct softmax_state {
  float maximum, sum;

  PLATEAU_HD float probability(float logit) const { return plateau::exp(logit - maximum) / sum; }
};

template <class Team> PLATEAU_HD softmax_state softmax_of(Team& team, const float* logit, index_t n) {
  const float largest =
      team.reduce(n, plateau::lowest<float>(), plateau::maximum{}, [=](index_t i) { return logit[i]; });
  const float sum = team.reduce(n, 0.0f, plus{}, [=](index_t i) { return plateau::exp(logit[i] - largest); });
  return {largest, sum};
}

// Unsigned keys in descending order of preference, no two of a row alike: the float's order in the upper half
// (0 for a NaN, -0 as 0), the lower id first in the lower half.
PLATEAU_HD inline std::uint64_t preference(float logit, index_t id) {
  const std::uint32_t bits = plateau::bit_cast<std::uint32_t>(logit + 0.0f);
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  const std::uint32_t upper = plateau::is_nan(logit) ? 0u : ordered;
  return (static_cast<std::uint64_t>(upper) << 32) | (0xffffffffu - static_cast<std::uint32_t>(id));
}

// Probabilities and gates of a row for given ids. An id out of range weighs nothing.
template <class Team, class Ids>
PLATEAU_HD void write_gates(Team& team, const float* logit, index_t experts, const Ids& ids, index_t top_k,
                            float* probability, float* gate) {
  const softmax_state state = softmax_of(team, logit, experts);
  team.for_each(experts, [=](index_t e) { probability[e] = state.probability(logit[e]); });
  team.once([=] {
    // Against the largest of the chosen: those of experts that somebody else chose may all be so small beside
    // the row's largest that their probabilities are 0. Where there are no probabilities there are no gates.
    float largest = plateau::lowest<float>();
    for (index_t j = 0; j < top_k; ++j) {
      const index_t id = ids[j];
      if (id >= 0 && id < experts && logit[id] > largest) largest = logit[id];
    }
    const bool defined = state.sum > 0.0f; // no for a NaN
    float total = 0.0f;
    for (index_t j = 0; j < top_k; ++j) {
      const index_t id = ids[j];
      const bool exists = id >= 0 && id < experts;
      gate[j] = !exists ? 0.0f : defined ? plateau::exp(logit[id] - largest) : state.probability(logit[id]);
      total += gate[j];
    }
    for (index_t j = 0; j < top_k; ++j) gate[j] = total == 0.0f ? 0.0f : gate[j] / total;
  });
}

} // namespace detail

// Over rows{tokens}. 1 <= top_k <= min(experts, max_top_k).
struct route {
  int top_k = 1;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const float> logits,  // (tokens, experts)
                             tile<float> probabilities, // (tokens, experts), written
                             tile<std::int32_t> ids,    // (tokens, top_k), written: most probable first
                             tile<float> gates) const { // (tokens, top_k), written
    struct choice {
      std::int32_t id[max_top_k];
      PLATEAU_HD std::int32_t operator[](index_t j) const { return id[j]; }
    };
    const float* logit = logits.row(row);
    const int k = top_k;
    choice chosen{};
    std::uint64_t last = ~std::uint64_t{0}; // above every key
    for (int j = 0; j < k; ++j) {
      last = team.reduce(logits.cols, std::uint64_t{0}, plateau::maximum{}, [=](index_t e) {
        const std::uint64_t key = detail::preference(logit[e], e);
        return key < last ? key : std::uint64_t{0};
      });
      chosen.id[j] = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(last));
    }
    std::int32_t* to = ids.row(row);
    team.once([=] {
      for (int j = 0; j < k; ++j) to[j] = chosen.id[j];
    });
    detail::write_gates(team, logit, logits.cols, chosen, k, probabilities.row(row), gates.row(row));
  }
};

// Over rows{tokens}: the same for experts that somebody else chose. One that is there more than once has a
// gate for each time, as if it were as many experts with the same logit.
struct gates_of_forced {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const float> logits,     // (tokens, experts)
                             tile<float> probabilities,    // (tokens, experts), written
                             tile<const std::int32_t> ids, // (tokens, top_k)
                             tile<float> gates) const {    // (tokens, top_k), written
    detail::write_gates(team, logits.row(row), logits.cols, ids.row(row), ids.cols, probabilities.row(row),
                        gates.row(row));
  }
};

// Over rows{tokens}. The gates are a softmax over the chosen logits alone, so that what reaches them needs no
// probability: dlogit = gate * (dgate - sum of gate * dgate). To that comes the load-balancing loss, the sum
// over experts of balance_scale * load * probability; with balance_scale = 0 the load is not read and may be
// empty. An expert that is there more than once gets the sum over its slots; one out of range is passed over.
struct route_backward {
  float balance_scale = 0.0f;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const float> logits,                          // (tokens, experts)
                             tile<const std::int32_t> ids,                      // (tokens, top_k)
                             tile<const float> gates, tile<const float> dgates, // (tokens, top_k)
                             view<const float> load,                            // (experts)
                             tile<T> dlogits) const {                           // (tokens, experts), written
    const index_t experts = logits.cols, k = ids.cols;
    const std::int32_t* id = ids.row(row);
    const float* gate = gates.row(row);
    const float* dgate = dgates.row(row);
    T* to = dlogits.row(row);
    float along = 0.0f;
    for (index_t j = 0; j < k; ++j) along += gate[j] * dgate[j];
    // All experts by `rest`, then once more the chosen ones: few, and each needs its one rounding.
    const auto write = [=, &team](auto rest) {
      team.for_each(experts, [=](index_t e) { to[e] = narrow<T>(rest(e)); });
      team.once([=] {
        for (index_t j = 0; j < k; ++j) {
          if (id[j] < 0 || id[j] >= experts) continue;
          float sum = rest(id[j]);
          for (index_t i = 0; i < k; ++i)
            if (id[i] == id[j]) sum += gate[i] * (dgate[i] - along);
          to[id[j]] = narrow<T>(sum); // from each of its slots the same
        }
      });
    };
    if (balance_scale == 0.0f) {
      write([](index_t) { return 0.0f; });
      return;
    }
    const float scale = balance_scale;
    const float* logit = logits.row(row);
    const float* weight = load.p;
    const detail::softmax_state state = detail::softmax_of(team, logit, experts);
    const float mean = team.reduce(experts, 0.0f, plus{},
                                   [=](index_t e) { return state.probability(logit[e]) * weight[e]; });
    write([=](index_t e) { return scale * state.probability(logit[e]) * (weight[e] - mean); });
  }
};

} // namespace moe
