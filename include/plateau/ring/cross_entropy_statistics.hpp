// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy tells of a token beyond its loss, where it is asked to: the entropy of its
// distribution, the id of its largest logit, and whether that is the target. Of each a number is carried
// beside the token's state: nothing of it where it is not asked for.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/entropy_state.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

// The identity of ids: larger than any.
inline constexpr std::int64_t no_id = ~(std::int64_t{1} << 63);

struct lower_id {
  PLATEAU_HD constexpr std::int64_t operator()(std::int64_t a, std::int64_t b) const { return b < a ? b : a; }
};

// Over elements{tokens}: the state of another part of the vocabulary joins in. Arrays that nobody asked for
// are empty. Of equal logits the lowest id stays, whatever the order.
struct merge_statistics {
  PLATEAU_HD void operator()(index_t i, view<const token_state> from, view<const float> from_spreads,
                             view<const std::int64_t> from_largest, view<token_state> states,
                             view<float> spreads, view<std::int64_t> largest) const {
    merge_into(i, from[i], spreads.n == 0 ? 0.0f : from_spreads[i], largest.n == 0 ? no_id : from_largest[i],
               states, spreads, largest);
  }
  PLATEAU_HD void merge_into(index_t i, const token_state& part, float spread, std::int64_t id,
                             view<token_state> states, view<float> spreads,
                             view<std::int64_t> largest) const {
    const token_state before = states[i];
    states[i] = merge(before, part);
    if (spreads.n != 0)
      spreads[i] =
          merge(entropy_state::of(before.lse(), spreads[i]), entropy_state::of(part.lse(), spread)).a;
    if (largest.n == 0) return;
    if (before.m < part.m)
      largest[i] = id;
    else if (!(part.m < before.m))
      largest[i] = lower_id{}(largest[i], id);
  }
};

// Over elements{tokens}: what was carried becomes what was asked for. A row without a distribution, whose lse
// is NaN, has a NaN for an entropy and -1 for an id.
struct finish_statistics {
  loss_terms terms;

  template <class Id>
  PLATEAU_HD void operator()(index_t i, view<const Id> targets, view<const float> token_weights,
                             view<const token_state> states,
                             view<float> entropies,               // (tokens) or empty: spreads, updated
                             view<std::int64_t> ids,              // (tokens) or empty, updated
                             view<unsigned char> correct) const { // (tokens) or empty, written
    const online_lse lse = states[i].lse();
    if (entropies.n != 0) entropies[i] = entropy_state::of(lse, entropies[i]).entropy();
    if (ids.n == 0) return;
    const std::int64_t id = is_nan(lse.value()) ? -1 : ids[i];
    ids[i] = id;
    const auto target = static_cast<std::int64_t>(targets[i]);
    if (correct.n != 0) correct[i] = terms.counts(target, value_or_one(token_weights, i)) && id == target;
  }
};

// Over rows{blocks}: of the tokens of block b, how many are right (`loss`) and how many count (`weight`).
struct sum_correct {
  loss_terms terms;
  index_t block_tokens = 0;

  template <class Team, class Id>
  PLATEAU_HD void operator()(Team& team, index_t b, view<const Id> targets, view<const float> token_weights,
                             view<const std::int64_t> ids, view<token_sums> to) const {
    const index_t first = b * block_tokens, left = targets.n - first;
    const index_t n = left < 0 ? 0 : left < block_tokens ? left : block_tokens;
    const loss_terms t = terms;
    const token_sums sum = team.reduce(n, token_sums{}, plus{}, [=](index_t k) {
      const auto target = static_cast<std::int64_t>(targets[first + k]);
      token_sums one;
      if (!t.counts(target, value_or_one(token_weights, first + k))) return one;
      one.loss = ids[first + k] == target ? 1 : 0;
      one.weight = 1;
      return one;
    });
    team.once([=] { to[b] = sum; });
  }
};

} // namespace plateau::inline v0
