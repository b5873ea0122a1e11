// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy of rows of logits that are all there: log of the sum of exponentials less the
// target's logit, with the largest logit taken off first. A target that is not in the vocabulary makes its
// row count as nothing: loss 0, gradient 0.
#pragma once

#include "types.hpp"

#include <cmath>

namespace moe {

namespace detail {
struct log_sum_exp {
  float maximum, sum;

  PLATEAU_HD float loss(float target_logit) const { return ::logf(sum) + (maximum - target_logit); }
};
template <class Team> PLATEAU_HD log_sum_exp log_sum_exp_of(Team& team, const float* logit, index_t n) {
  const float largest =
      team.reduce(n, plateau::lowest<float>(), plateau::maximum{}, [=](index_t c) { return logit[c]; });
  const float sum = team.reduce(n, 0.0f, plus{}, [=](index_t c) { return plateau::exp(logit[c] - largest); });
  return {largest, sum};
}
} // namespace detail

// Over rows{tokens}: loss and gradient. gradient_scale is what the loss of a row counts, 1 / tokens for a
// mean.
struct cross_entropy {
  float gradient_scale = 1.0f;

  template <class Team, class T>
  PLATEAU_HD void
  operator()(Team& team, index_t row,
             tile<float> logits,               // (tokens, vocabulary)
             view<const std::int32_t> targets, // (tokens)
             tile<T> dlogits,            // (tokens, vocabulary), written; for T = float it may be the logits
             view<float> losses) const { // (tokens), written
    const index_t target = targets[row], n = logits.cols;
    const float* logit = logits.row(row);
    T* to = dlogits.row(row);
    if (target < 0 || target >= n) {
      team.for_each(n, [=](index_t c) { to[c] = narrow<T>(0.0f); });
      team.once([=] { losses[row] = 0.0f; });
      return;
    }
    const float target_logit = logit[target]; // before it may be overwritten
    const detail::log_sum_exp state = detail::log_sum_exp_of(team, logit, n);
    const float scale = gradient_scale, largest = state.maximum, inverse = 1.0f / state.sum;
    team.for_each(n,
                  [=](index_t c) { to[c] = narrow<T>(plateau::exp(logit[c] - largest) * inverse * scale); });
    team.once([=] {
      to[target] = narrow<T>((plateau::exp(target_logit - largest) * inverse - 1.0f) * scale);
      losses[row] = state.loss(target_logit);
    });
  }
};

// Over rows{tokens}: the loss only, for evaluation.
struct cross_entropy_loss {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<const float> logits,         // (tokens, vocabulary)
                             view<const std::int32_t> targets, // (tokens)
                             view<float> losses) const {       // (tokens), written
    const index_t target = targets[row], n = logits.cols;
    const float* logit = logits.row(row);
    if (target < 0 || target >= n) {
      team.once([=] { losses[row] = 0.0f; });
      return;
    }
    const detail::log_sum_exp state = detail::log_sum_exp_of(team, logit, n);
    team.once([=] { losses[row] = state.loss(logit[target]); });
  }
};

} // namespace moe
