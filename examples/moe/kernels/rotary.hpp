// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions (Su et al. 2021), fused with the change between the two layouts of heads. In the flat
// layout of the projections a row is a token with its heads side by side. In the packed layout of attention
// all rows that meet the same keys are adjacent: the query heads that share a key-value head are folded into
// rows, so that attention is a batch of plain matrix products. Element e of a head turns with element e +
// head_size / 2, the convention of the published Mixtral weights, by the angle position * theta^(-2 e /
// head_size). Angles are formed in double, since a position of a million leaves float no digits behind the
// point, and their cosines and sines are rounded to float.
#pragma once

#include "angle.hpp"
#include "types.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>

namespace moe {

// Heads of a batch of equally long sequences. query_heads is a multiple of kv_heads; head_size is even.
// clang-format off
//   flat     (token, head, head_size), token = sequence * sequence_length + position
//   queries  (sequence, kv_head, position * group + g, head_size), for query head kv_head * group + g
//   keys     (sequence, kv_head, position, head_size), values too
// clang-format on
struct head_layout {
  index_t sequence_length = 0, query_heads = 0, kv_heads = 0, head_size = 0;

  PLATEAU_HD constexpr index_t group() const { return query_heads / kv_heads; }
  PLATEAU_HD constexpr index_t packed_query_rows() const { return sequence_length * group(); } // of a kv_head

  // Where a head of a token starts among packed elements; `together` is group() for queries and 1 for keys.
  PLATEAU_HD constexpr index_t packed_offset(index_t token, index_t head, index_t together) const {
    const index_t sequence = token / sequence_length, position = token % sequence_length;
    const index_t kv_head = head / together, g = head % together;
    return (((sequence * kv_heads + kv_head) * sequence_length + position) * together + g) * head_size;
  }
};

namespace detail {

template <class From, class To> struct head_pair {
  const From* from;
  To* to;
};

// Turns the heads place(first + 0), place(first + 1), ... of a token by the same angles, all in one loop: an
// angle costs more than the heads that turn by it.
template <class Team, class Place, std::size_t... Head>
PLATEAU_HD void turn_heads(Team& team, index_t first, const rotary_angles& angles, index_t half,
                           float direction, Place place, std::index_sequence<Head...>) {
  using pair = decltype(place(first));
  struct {
    pair at[sizeof...(Head)];
  } const heads{{place(first + static_cast<index_t>(Head))...}};
  team.for_each(half, [=](index_t e) {
    const rotation by = angles(e);
    const float cosine = by.cosine, sine = by.sine * direction;
    const auto turn = [=](auto from, auto* to) {
      const float a = widen(from[e]), b = widen(from[e + half]);
      using T = std::remove_reference_t<decltype(*to)>;
      to[e] = narrow<T>(a * cosine - b * sine);
      to[e + half] = narrow<T>(b * cosine + a * sine);
    };
    (turn(heads.at[Head].from, heads.at[Head].to), ...);
  });
}

// place(h) is where head h comes from and goes to; direction is 1, or -1 to turn back.
template <class Team, class Place>
PLATEAU_HD void turn_all_heads(Team& team, index_t position, const head_layout& layout, double theta,
                               index_t count, float direction, Place place) {
  const rotary_angles angles = rotary_angles::at(position, layout.head_size, theta);
  const index_t half = layout.head_size / 2;
  index_t h = 0;
  for (; h + 4 <= count; h += 4)
    turn_heads(team, h, angles, half, direction, place, std::make_index_sequence<4>{});
  for (; h < count; ++h) turn_heads(team, h, angles, half, direction, place, std::make_index_sequence<1>{});
}

} // namespace detail

// Over rows{tokens}. keys: the rows have kv_heads heads (keys, values), else query_heads (queries, output
// gradients). rotate = false packs only.
struct rotate_and_pack {
  head_layout layout;
  double theta = 1e6;
  bool rotate = true;
  bool keys = false;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             tile<const T> flat,     // (tokens, heads * head_size)
                             view<T> packed) const { // (tokens * heads * head_size), written
    const head_layout heads = layout;
    const index_t count = keys ? heads.kv_heads : heads.query_heads, together = keys ? 1 : heads.group();
    const T* from = flat.row(token);
    T* to = packed.p;
    if (!rotate) {
      for (index_t h = 0; h < count; ++h) {
        const T* head = from + h * heads.head_size;
        T* out = to + heads.packed_offset(token, h, together);
        team.for_each(heads.head_size, [=](index_t e) { copy_element(head[e], out[e]); });
      }
      return;
    }
    detail::turn_all_heads(team, token % heads.sequence_length, heads, theta, count, 1.0f, [=](index_t h) {
      return detail::head_pair<T, T>{from + h * heads.head_size,
                                     to + heads.packed_offset(token, h, together)};
    });
  }
};

// Over rows{tokens}: the inverse of rotate_and_pack and, as a rotation is orthogonal, its backward.
struct unpack_and_rotate_back {
  head_layout layout;
  double theta = 1e6;
  bool rotate = true;
  bool keys = false;

  template <class Team, class U, class T>
  PLATEAU_HD void operator()(Team& team, index_t token,
                             view<const U> packed, // (tokens * heads * head_size), float or T
                             tile<T> flat) const { // (tokens, heads * head_size), written
    const head_layout heads = layout;
    const index_t count = keys ? heads.kv_heads : heads.query_heads, together = keys ? 1 : heads.group();
    const U* from = packed.p;
    T* to = flat.row(token);
    if (!rotate) {
      for (index_t h = 0; h < count; ++h) {
        const U* head = from + heads.packed_offset(token, h, together);
        T* out = to + h * heads.head_size;
        team.for_each(heads.head_size, [=](index_t e) { out[e] = narrow<T>(widen(head[e])); });
      }
      return;
    }
    detail::turn_all_heads(team, token % heads.sequence_length, heads, theta, count, -1.0f, [=](index_t h) {
      return detail::head_pair<U, T>{from + heads.packed_offset(token, h, together),
                                     to + h * heads.head_size};
    });
  }
};

} // namespace moe
