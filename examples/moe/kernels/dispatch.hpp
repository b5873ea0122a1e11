// SPDX-License-Identifier: Apache-2.0
//
// Rows on their way to experts and back. A route is a token and one of its top_k slots, numbered token *
// top_k + slot. `order` lists the routes in the order in which rows travel, grouped by expert; `position` is
// its inverse, where a route's row lies. What comes back for a token is added slot by slot, in float, with
// one rounding at the end, so that the result does not depend on how routes were grouped.
#pragma once

#include "types.hpp"

#include <cstddef>
#include <utility>

namespace moe {

// Over elements{routes}: position[order[i]] = i.
struct invert {
  PLATEAU_HD void operator()(index_t i, view<const std::int32_t> order, view<std::int32_t> position) const {
    position[order[i]] = static_cast<std::int32_t>(i);
  }
};

// Over rows{routes}: a copy of each route's token.
struct gather_rows {
  int top_k = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t i,
                             view<const std::int32_t> order, // (routes)
                             tile<const T> from,             // (tokens, hidden)
                             tile<T> to) const {             // (routes, hidden), written
    const T* source = from.row(order[i] / top_k);
    T* target = to.row(i);
    team.for_each(from.cols, [=](index_t c) { copy_element(source[c], target[c]); });
  }
};

// Over rows{routes}: each route's token times its gate, the output gradient that an expert sees.
struct gather_scaled_rows {
  int top_k = 1;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t i,
                             view<const std::int32_t> order, // (routes)
                             tile<const float> gates,        // (tokens, top_k)
                             tile<const T> from,             // (tokens, hidden)
                             tile<T> to) const {             // (routes, hidden), written
    const index_t token = order[i] / top_k, slot = order[i] % top_k;
    const float gate = gates(token, slot);
    const T* source = from.row(token);
    T* target = to.row(i);
    team.for_each(from.cols, [=](index_t c) { target[c] = narrow<T>(gate * widen(source[c])); });
  }
};

namespace detail {

// The returned rows of one token with their weights. For a few counts the slots are unrolled in the type, as
// a loop of unknown length inside the loop over columns would keep the latter from being vectorised.
template <class T, std::size_t... Slot> struct fixed_slots {
  struct part {
    const T* row;
    float weight;
  };
  part parts[sizeof...(Slot)];

  PLATEAU_HD float operator()(index_t c) const {
    float sum = 0.0f;
    ((sum += parts[Slot].weight * widen(parts[Slot].row[c])), ...);
    return sum;
  }
};
template <class T, class Weight> struct any_slots {
  const std::int32_t* position;
  tile<const T> returned;
  index_t top_k;
  Weight weight;

  PLATEAU_HD float operator()(index_t c) const {
    float sum = 0.0f;
    for (index_t j = 0; j < top_k; ++j) sum += weight(j) * widen(returned(position[j], c));
    return sum;
  }
};

template <class T, class Weight, class Body, std::size_t... Slot>
PLATEAU_HD void with_fixed_slots(const std::int32_t* position, tile<const T> returned, Weight weight,
                                 Body body, std::index_sequence<Slot...>) {
  body(fixed_slots<T, Slot...>{{{returned.row(position[Slot]), weight(index_t{Slot})}...}});
}

// body(sum), where sum(c) is the sum over the slots of weight(slot) * returned(position[slot], c), in order.
template <class T, class Weight, class Body>
PLATEAU_HD void with_slots(const std::int32_t* position, index_t top_k, tile<const T> returned, Weight weight,
                           Body body) {
  if (top_k == 1)
    with_fixed_slots(position, returned, weight, body, std::make_index_sequence<1>{});
  else if (top_k == 2)
    with_fixed_slots(position, returned, weight, body, std::make_index_sequence<2>{});
  else if (top_k == 4)
    with_fixed_slots(position, returned, weight, body, std::make_index_sequence<4>{});
  else if (top_k == 6)
    with_fixed_slots(position, returned, weight, body, std::make_index_sequence<6>{});
  else if (top_k == 8)
    with_fixed_slots(position, returned, weight, body, std::make_index_sequence<8>{});
  else
    body(any_slots<T, Weight>{position, returned, top_k, weight});
}

} // namespace detail

// Over rows{tokens}: adds what the experts returned, weighted by the gates, to out.
struct combine {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             view<const std::int32_t> position, // (routes)
                             tile<const float> gates,           // (tokens, top_k)
                             tile<const T> returned,            // (routes, hidden)
                             tile<T> out) const {               // (tokens, hidden), added to
    const float* gate = gates.row(token);
    T* to = out.row(token);
    detail::with_slots(
        position.p + token * gates.cols, gates.cols, returned, [=](index_t j) { return gate[j]; },
        [&team, to, n = out.cols](const auto& sum) {
          team.for_each(n, [=](index_t c) { to[c] = narrow<T>(widen(to[c]) + sum(c)); });
        });
  }
};

// Over rows{tokens}: the sum of the input gradients that the experts returned for a token.
struct combine_gradients {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             view<const std::int32_t> position, // (routes)
                             index_t top_k,
                             tile<const T> returned, // (routes, hidden)
                             tile<T> out) const {    // (tokens, hidden), written
    T* to = out.row(token);
    detail::with_slots(
        position.p + token * top_k, top_k, returned, [](index_t) { return 1.0f; },
        [&team, to, n = out.cols](const auto& sum) {
          team.for_each(n, [=](index_t c) { to[c] = narrow<T>(sum(c)); });
        });
  }
};

// Over rows{tokens}: the gradient of each gate, the token's output gradient times what its expert returned.
struct gate_gradients {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             view<const std::int32_t> position, // (routes)
                             tile<const T> dout,                // (tokens, hidden)
                             tile<const T> returned,            // (routes, hidden)
                             tile<float> dgates) const {        // (tokens, top_k), written
    const index_t k = dgates.cols;
    const T* upstream = dout.row(token);
    float* to = dgates.row(token);
    for (index_t j = 0; j < k; ++j) {
      const T* value = returned.row(position[token * k + j]);
      const float dot = team.reduce(dout.cols, 0.0f, plus{},
                                    [=](index_t c) { return widen(upstream[c]) * widen(value[c]); });
      team.once([=] { to[j] = dot; });
    }
  }
};

// Over rows{experts}: adds the number of routes of each expert. Exact while a count stays below 2^24.
struct count_routes {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t expert,
                             view<const std::int64_t> offsets, // (experts + 1)
                             view<float> counts) const {       // (experts), added to
    const std::int64_t routes = offsets[expert + 1] - offsets[expert];
    team.once([=] { counts[expert] += static_cast<float>(routes); });
  }
};

// Over elements{n}: adds counts that the host knows, as many as fit into a launch.
struct add_counts {
  static constexpr index_t most = 64;
  float counts[most] = {};

  PLATEAU_HD void operator()(index_t i, view<float> to) const { to[i] += counts[i]; }
};

} // namespace moe
