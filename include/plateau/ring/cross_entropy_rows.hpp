// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a linear cross-entropy that see tokens and no logits: what travels with a token, its loss,
// the sums over tokens, and the first target that is not in the vocabulary. Targets are 32 or 64 bits wide
// and always compared in 64.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

// Arrays that may be empty: everything is 1 then.
PLATEAU_HD inline float value_or_one(view<const float> v, index_t i) { return v.n == 0 ? 1.0f : v[i]; }

// The sums over tokens, and the first bad target: in double and in a fixed order.
struct token_sums {
  static constexpr index_t none = ~(index_t{1} << 63); // the largest

  double loss = 0;
  double weight = 0;
  index_t bad_token = none;

  PLATEAU_HD friend token_sums operator+(const token_sums& a, const token_sums& b) {
    token_sums out;
    out.loss = a.loss + b.loss;
    out.weight = a.weight + b.weight;
    out.bad_token = a.bad_token < b.bad_token ? a.bad_token : b.bad_token;
    return out;
  }
};
// Blocks of tokens that are summed apart, however many tokens there are: a fixed amount of scratch.
inline constexpr index_t token_sum_blocks = 256;

// Over elements{1}..: the target that travels with a token, -1 if it counts as nothing.
struct token_targets {
  loss_terms terms;

  template <class Id>
  PLATEAU_HD void operator()(index_t i, view<const Id> targets, view<const float> token_weights,
                             view<std::int64_t> to) const {
    const auto target = static_cast<std::int64_t>(targets[i]);
    to[i] = terms.counts(target, value_or_one(token_weights, i)) ? target : -1;
  }
};

// The class weights of a target that counts, and of all classes: 1 and the vocabulary where there are none.
struct class_weighting {
  view<const float> weights; // (vocabulary), or empty
  view<const float> sum;     // (1)

  PLATEAU_HD float of(std::int64_t target) const { return weights.n == 0 ? 1.0f : weights[target]; }
};

// The loss of token i, weighted; 0 if it counts as nothing. What all the kernels below agree on.
template <class Id>
PLATEAU_HD float token_loss(const loss_terms& terms, index_t i, view<const Id> targets,
                            view<const float> token_weights, const class_weighting& classes,
                            view<const token_state> states) {
  const auto target = static_cast<std::int64_t>(targets[i]);
  const float weight = value_or_one(token_weights, i);
  if (!terms.counts(target, weight)) return 0.0f;
  return weight * terms.loss(states[i], classes.of(target), classes.sum[0]);
}

// Over elements{tokens}: what a caller may want of each token. Empty arrays are left out.
struct token_outputs {
  loss_terms terms;

  template <class Id>
  PLATEAU_HD void operator()(index_t i, view<const Id> targets, view<const float> token_weights,
                             view<const float> class_weights, view<const float> class_sum,
                             view<const token_state> states,
                             view<float> losses,                    // (tokens)
                             view<float> lses,                      // (tokens)
                             view<float> log_probabilities) const { // of the target; 0 if it does not count
    if (losses.n != 0)
      losses[i] =
          token_loss(terms, i, targets, token_weights, class_weighting{class_weights, class_sum}, states);
    const token_state state = states[i];
    if (lses.n != 0) lses[i] = state.lse().value();
    const bool counts = terms.counts(static_cast<std::int64_t>(targets[i]), value_or_one(token_weights, i));
    // As in the loss: the lse itself has lost log s where logits are large.
    if (log_probabilities.n != 0)
      log_probabilities[i] = counts ? (state.target - state.m) - state.log_sum() : 0.0f;
  }
};

// Over rows{blocks}: the sums of block b, of ceil(tokens / blocks) tokens.
struct sum_tokens {
  loss_terms terms;
  index_t block_tokens = 0;

  template <class Team, class Id>
  PLATEAU_HD void operator()(Team& team, index_t b, view<const Id> targets, view<const float> token_weights,
                             view<const float> class_weights, view<const float> class_sum,
                             view<const token_state> states, view<token_sums> to) const {
    const index_t first = b * block_tokens, left = targets.n - first;
    const index_t n = left < 0 ? 0 : left < block_tokens ? left : block_tokens;
    const class_weighting classes{class_weights, class_sum};
    const loss_terms t = terms;
    const token_sums sum = team.reduce(n, token_sums{}, plus{}, [=](index_t k) {
      const index_t i = first + k;
      const auto target = static_cast<std::int64_t>(targets[i]);
      const float weight = value_or_one(token_weights, i);
      token_sums one;
      if (target != t.ignore_index && (target < 0 || target >= t.vocabulary)) one.bad_token = i;
      if (!t.counts(target, weight)) return one;
      one.loss = static_cast<double>(token_loss(t, i, targets, token_weights, classes, states));
      one.weight = static_cast<double>(weight) * static_cast<double>(classes.of(target));
      return one;
    });
    team.once([=] { to[b] = sum; });
  }
};

// The first bad target of a rank: the token, -1 if there is none, and its target.
struct bad_target {
  index_t token = -1;
  std::int64_t target = 0;
};

// Over rows{1}: the blocks together.
struct join_sums {
  template <class Team, class Id>
  PLATEAU_HD void operator()(Team& team, index_t, view<const token_sums> blocks, view<const Id> targets,
                             view<double> sums,            // (2): losses, weights
                             view<bad_target> bad) const { // (1)
    const token_sums all = team.reduce(blocks.n, token_sums{}, plus{}, [=](index_t b) { return blocks[b]; });
    team.once([=] {
      sums[0] = all.loss;
      sums[1] = all.weight;
      bad_target first;
      if (all.bad_token != token_sums::none) {
        first.token = all.bad_token;
        first.target = static_cast<std::int64_t>(targets[all.bad_token]);
      }
      bad[0] = first;
    });
  }
};

// Over rows{1}: the sum of the class weights, or of as many ones.
struct sum_classes {
  index_t vocabulary = 0;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t, view<const float> class_weights, view<float> to) const {
    const float sum = team.reduce(class_weights.n, 0.0f, plus{}, [=](index_t v) { return class_weights[v]; });
    const float all = class_weights.n == 0 ? static_cast<float>(vocabulary) : sum;
    team.once([=] { to[0] = all; });
  }
};

// What sums are divided by. Division by the weight of no tokens is 0, or NaN by option.
struct loss_divisor {
  double fixed = 1;    // where it is not the weight
  bool weight = false; // whether it is
  bool nan_when_empty = false;

  PLATEAU_HD double of(view<const double> sums) const { return weight ? sums[1] : fixed; }
  // Whether it is the weight of nothing, as of tokens whose targets all have the class weight 0. There are no
  // gradients then.
  PLATEAU_HD bool empty(view<const double> sums) const { return weight && sums[1] == 0.0; }
};

// Over elements{1}: the loss.
struct reduce_loss {
  loss_divisor by;

  PLATEAU_HD void operator()(index_t, view<const double> sums, view<float> loss) const {
    if (by.empty(sums))
      loss[0] = by.nan_when_empty ? bit_cast<float>(std::uint32_t{0x7fc00000}) : 0.0f;
    else
      loss[0] = static_cast<float>(sums[0] / by.of(sums));
  }
};

// Over elements{tokens of a sub-block}: what travels with them in backward.
struct token_gradients {
  loss_terms terms;
  loss_divisor by;
  index_t first = 0; // of the sub-block, among the rank's tokens

  template <class Id>
  PLATEAU_HD void operator()(index_t k, view<const Id> targets, view<const float> token_weights,
                             view<const float> class_weights, view<const float> class_sum,
                             view<const token_state> states,
                             view<const float> upstream, // (tokens), or (1) for all of them
                             view<const double> sums, view<token_gradient> to) const {
    const index_t i = first + k;
    const auto target = static_cast<std::int64_t>(targets[i]);
    const float weight = value_or_one(token_weights, i);
    token_gradient g;
    if (terms.counts(target, weight) && !by.empty(sums)) {
      const class_weighting classes{class_weights, class_sum};
      const double factor = static_cast<double>(upstream.n == 1 ? upstream[0] : upstream[i]) *
                            static_cast<double>(weight) / by.of(sums);
      g = token_gradient::of(terms, states[i], target, static_cast<float>(factor), classes.of(target),
                             classes.sum[0]);
    }
    to[k] = g;
  }
};

// dx of tokens whose gradient is complete, from fp32, rounded once.
struct round_rows {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const float> from, tile<T> to) const {
    const float* source = from.row(row);
    T* target = to.row(row);
    team.for_each(from.cols, [=](index_t c) { target[c] = narrow<T>(source[c]); });
  }
};
// Rows of one matrix added to those of another.
struct add_rows {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<const float> from, tile<float> to) const {
    const float* source = from.row(row);
    float* target = to.row(row);
    team.for_each(from.cols, [=](index_t c) { target[c] += source[c]; });
  }
};
// Over elements{tokens}: states += what other ranks have seen of them.
struct merge_states {
  PLATEAU_HD void operator()(index_t i, view<const token_state> from, view<token_state> to) const {
    to[i] = merge(to[i], from[i]);
  }
};

} // namespace plateau::inline v0
