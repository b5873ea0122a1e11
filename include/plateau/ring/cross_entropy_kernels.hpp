// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a linear cross-entropy that see a tile of the logits: one folds the tile into the states of
// its tokens, the other turns it into gradients. Between them nothing of a tile is kept. A column is known by
// its number in the whole vocabulary, so that a target matches only a column that is really there.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/entropy_state.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <type_traits>

namespace plateau::inline v0 {

namespace detail {
// Products become logits, in place, where there is more to them than the product. Where there is not, they
// come as a tile of const.
template <class Team, class Z>
PLATEAU_HD void map_logits(Team& team, Z* row, index_t n, const logit_map& map, view<const float> bias) {
  if constexpr (!std::is_const_v<Z>) {
    if (bias.n != 0) team.for_each(n, [=](index_t c) { row[c] += bias[c]; });
    if (!map.plain()) team.for_each(n, [=](index_t c) { row[c] = map.value(row[c]); });
  }
}
} // namespace detail

// Over rows{tokens of the tile}: states (+)= the tile. `products` become logits.
struct fold_logits {
  logit_map map;
  index_t first_column = 0; // of the tile, in the whole vocabulary
  bool sums = false;        // whether the sum of logits is wanted, for smoothing

  template <class Team, class Z>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<Z> products,                 // (tokens, columns), updated or const
                             view<const float> bias,           // (columns), or empty
                             view<const float> class_weights,  // (columns), or empty for 1
                             view<const std::int64_t> targets, // (tokens), -1 for none
                             view<token_state> states) const { // (tokens), updated
    const token_state tile = state_of(team, row, products, bias, class_weights, targets[row]);
    team.once([=] { states[row] = merge(states[row], tile); });
  }

  // The state of a row of the tile alone.
  template <class Team, class Z>
  PLATEAU_HD token_state state_of(Team& team, index_t row, tile<Z> products, view<const float> bias,
                                  view<const float> class_weights, std::int64_t target) const {
    const index_t n = products.cols, at = target - first_column;
    Z* z = products.row(row);
    detail::map_logits(team, z, n, map, bias);
    // A NaN is passed over by the maximum, and shows in the sum.
    const float largest = team.reduce(n, lowest<float>(), maximum{}, [=](index_t c) { return z[c]; });
    token_state out;
    out.m = largest;
    out.s = team.reduce(n, 0.0f, plus{}, [=](index_t c) { return exp(z[c] - largest); });
    if (sums)
      out.sum = class_weights.n == 0
                    ? team.reduce(n, 0.0f, plus{}, [=](index_t c) { return z[c]; })
                    : team.reduce(n, 0.0f, plus{}, [=](index_t c) { return class_weights[c] * z[c]; });
    if (at >= 0 && at < n) out.target = z[at];
    return out;
  }
};

// The same where an entropy or the largest logit's id is asked for too: what is not stays empty.
struct fold_statistics {
  fold_logits fold;

  template <class Team, class Z>
  PLATEAU_HD void operator()(Team& team, index_t row, tile<Z> products, view<const float> bias,
                             view<const float> class_weights, view<const std::int64_t> targets,
                             view<token_state> states,
                             view<float> spreads,                // (tokens), updated: entropy_state's a
                             view<std::int64_t> largest) const { // (tokens), updated: ids
    const token_state tile = fold.state_of(team, row, products, bias, class_weights, targets[row]);
    const index_t n = products.cols, first = fold.first_column;
    const Z* z = products.row(row);
    const float m = tile.m;
    const float spread = spreads.n == 0 ? 0.0f : team.reduce(n, 0.0f, plus{}, [=](index_t c) {
      return entropy_state::term(exp(z[c] - m), m, z[c]);
    });
    const std::int64_t id = largest.n == 0 ? no_id : team.reduce(n, no_id, lower_id{}, [=](index_t c) {
      return z[c] == m ? first + c : no_id;
    });
    team.once([=] { merge_statistics{}.merge_into(row, tile, spread, id, states, spreads, largest); });
  }
};

// Over rows{tokens of the tile}: the gradient of the products, rounded once. For T = float it may take the
// place of the products.
struct logit_gradients {
  logit_map map;
  index_t first_column = 0;

  template <class Team, class Z, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             tile<Z> products,                  // (tokens, columns), updated or const
                             view<const float> bias,            // as above
                             view<const float> class_weights,   // as above
                             view<const token_gradient> tokens, // (tokens)
                             tile<T> gradients) const {         // (tokens, columns), written
    const token_gradient token = tokens[row];
    const index_t n = products.cols, at = token.target - first_column;
    Z* z = products.row(row);
    T* to = gradients.row(row);
    if (token.target < 0) { // nothing of the row is looked at
      team.for_each(n, [=](index_t c) { to[c] = narrow<T>(0.0f); });
      return;
    }
    detail::map_logits(team, z, n, map, bias);
    const logit_map slopes = map;
    const auto at_column = [=](index_t c, float logit) {
      const float weight = class_weights.n == 0 ? 1.0f : class_weights[c];
      return exp(logit - token.m) * token.scale - token.smooth * weight;
    };
    const bool here = at >= 0 && at < n;
    const float target = here ? z[at] : 0.0f;
    team.once([] {}); // all members have read it before one overwrites it
    if (map.plain() && token.smooth == 0.0f) {
      const float m = token.m, scale = token.scale;
      team.for_each(n, [=](index_t c) { to[c] = narrow<T>(exp(z[c] - m) * scale); });
    } else {
      team.for_each(n, [=](index_t c) { to[c] = narrow<T>(at_column(c, z[c]) * slopes.slope(z[c])); });
    }
    team.once([=] {
      if (here) to[at] = narrow<T>((at_column(at, target) - token.hit) * slopes.slope(target));
    });
  }
};

} // namespace plateau::inline v0
