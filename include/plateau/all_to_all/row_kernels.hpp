// SPDX-License-Identifier: Apache-2.0
//
// Rows of a round: out of the tokens into the send slot, and what came back out of the slot into sums of each
// token. Sums are in float, in the order of a token's slots, and rounded once; products are rounded before
// they are added where rows of one token may come back in different rounds, so that two of them give the same
// bits in either order.
#pragma once

#include <plateau/all_to_all/row_copy.hpp>
#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace plateau::inline v0::detail::dispatch {

// What n rows of a table take that are read and written, with the list that says which.
template <class T> constexpr std::uint64_t copied_rows_bytes(index_t n, index_t width) {
  return static_cast<std::uint64_t>(n) * (2 * static_cast<std::uint64_t>(width) * sizeof(T) + 4);
}

// Over rows{n}: each route's token, bit for bit.
struct gather_rows {
  int top_k = 1;

  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t i, view<const std::int32_t, S> slot_route, // (n)
                             tile<const T, S> from,                                         // (tokens, width)
                             tile<T, S> to) const { // (n, width), written
    copy_row(team, from.row(slot_route[i] / top_k), to.row(i), from.cols);
  }
  template <class T, class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, tile<const T, S> from, tile<T, S>) const {
    return copied_rows_bytes<T>(n, from.cols);
  }
};

// Over rows{n}, for results that are kept until all have come: each row to the place of its route.
struct keep_rows {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t i, view<const std::int32_t, S> slot_route, // (n)
                             tile<const T, S> returned,                                     // (n, width)
                             tile<T, S> kept) const { // (routes, width), written at routes
    copy_row(team, returned.row(i), kept.row(slot_route[i]), returned.cols);
  }
  template <class T, class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, tile<const T, S> from, tile<T, S>) const {
    return copied_rows_bytes<T>(n, from.cols);
  }
};

// Over elements{n}: each route's gate.
struct gather_gates {
  template <class S>
  PLATEAU_HD void operator()(index_t i, view<const std::int32_t, S> slot_route, // (n)
                             view<const float, S> gates,                        // (routes)
                             view<float, S> to) const {                         // (n), written
    to[i] = gates[slot_route[i]];
  }
  template <class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, view<const float, S>,
                            view<float, S>) const {
    return copied_rows_bytes<float>(n, 1);
  }
};

// Over elements{n}: the gradient of each route's gate. Those of tokens without a route are zeroed before.
struct scatter_gate_gradients {
  template <class S>
  PLATEAU_HD void operator()(index_t i, view<const std::int32_t, S> slot_route, // (n)
                             view<const float, S> returned,                     // (n)
                             view<float, S> dgates) const {                     // (routes), written at routes
    dgates[slot_route[i]] = returned[i];
  }
  template <class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, view<const float, S>,
                            view<float, S>) const {
    return copied_rows_bytes<float>(n, 1);
  }
};

// The float whose bits are those of `value` and of `zero`, which is 0 although no compiler knows it. What
// passes through here is rounded: it cannot become part of a fused multiply-add.
PLATEAU_HD inline float as_rounded(float value, std::uint32_t zero) {
  return bit_cast<float>(bit_cast<std::uint32_t>(value) ^ zero);
}
PLATEAU_HD inline std::uint32_t opaque_zero() {
  std::uint32_t zero = 0;
#if !defined(__CUDA_ARCH__)
  asm("" : "+r"(zero)); // outside all loops, so that it keeps none from being vectorised
#endif
  return zero;
}
// weight * value, rounded: the same on host and device.
PLATEAU_HD inline float rounded_product(float weight, float value, [[maybe_unused]] std::uint32_t zero) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(weight, value);
#else
  return as_rounded(weight * value, zero);
#endif
}

// A few rows with their weights, found at run time. Written by comparing and not by indexing, so that on a
// device they stay in registers.
template <class T> struct weighted_row {
  const T* row = nullptr;
  float weight = 0.0f;
};
template <class T, int Most> struct weighted_rows {
  weighted_row<T> part[Most] = {};
  int count = 0;

  PLATEAU_HD void push(const T* row, float weight) {
    for (int i = 0; i < Most; ++i)
      if (i == count) part[i] = {row, weight};
    ++count;
  }
};

// The first sizeof...(Part) of them, with the loop over rows unrolled in the type: a loop of unknown length
// inside the loop over columns would keep the latter from being vectorised.
template <class T, std::size_t... Part> struct fixed_rows {
  weighted_row<T> part[sizeof...(Part)];

  // The compiler may fuse products and sums.
  PLATEAU_HD float sum(index_t c) const {
    float out = 0.0f;
    ((out += part[Part].weight * widen(part[Part].row[c])), ...);
    return out;
  }
  // It may not.
  PLATEAU_HD float add_to(float out, index_t c, std::uint32_t zero) const {
    ((out += rounded_product(part[Part].weight, widen(part[Part].row[c]), zero)), ...);
    return out;
  }
};
template <class T, int Most, std::size_t... Part>
PLATEAU_HD fixed_rows<T, Part...> first_rows(const weighted_rows<T, Most>& rows,
                                             std::index_sequence<Part...>) {
  return {{rows.part[Part]...}};
}
// body(fixed_rows) when there are exactly as many rows as one of the counts.
template <std::size_t... Count, class T, int Most, class Body>
PLATEAU_HD bool with_row_count(const weighted_rows<T, Most>& rows, Body body) {
  return ((rows.count == static_cast<int>(Count)
               ? (body(first_rows(rows, std::make_index_sequence<Count>{})), true)
               : false) ||
          ...);
}

// Over rows{n}, the rows of one round: adds to the sums of each token what came back for its routes. Several
// routes of a token may be in one round, while calls for different rows must not write the same sums: the row
// of the token's first slot in the round adds all of them, and the others return at once.
//
// Whatever the rounds, a token's sum has the same terms; with top_k <= 2 it has the same bits.
struct scatter_add {
  int top_k = 1;
  std::int64_t base = 0, count = 0; // the round has the positions [base, base + count)

  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t i, view<const std::int32_t, S> slot_route, // (n)
                             view<const std::int32_t, S> position, // (routes), of others outside the round
                             tile<const float, S> gates,           // (tokens, top_k); empty: all are 1
                             tile<const T, S> returned,            // (n, width)
                             tile<float, S> sums) const {          // (tokens, width), added to
    const index_t token = slot_route[i] / top_k;
    const int slots = top_k, slot = slot_route[i] % top_k;
    const std::int32_t* place = position.p + token * slots;
    const index_t first = base, rows = count;
    const auto row_of = [=](int j) { return index_t{place[j]} - first; };
    const auto in_round = [=](index_t row) { return row >= 0 && row < rows; };
    for (int j = 0; j < slot; ++j)
      if (in_round(row_of(j))) return;

    float* to = sums.row(token);
    const index_t n = sums.cols;
    const std::uint32_t zero = opaque_zero();
    for (int j = slot; j < slots;) { // a few rows at a time, in order: the sum is the same
      weighted_rows<T, 4> found;
      for (; j < slots && found.count < 4; ++j)
        if (in_round(row_of(j)))
          found.push(returned.row(row_of(j)), gates.rows == 0 ? 1.0f : gates(token, j));
      with_row_count<1, 2, 3, 4>(found, [&team, to, n, zero](const auto& some) {
        team.for_each(n, [=](index_t c) { to[c] = some.add_to(to[c], c, zero); });
      });
    }
  }
  // As if no two rows were of one token, up to what all tokens together can have.
  template <class T, class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, view<const std::int32_t, S>,
                            tile<const float, S>, tile<const T, S> returned, tile<float, S> to) const {
    const index_t passes = std::min(n, to.rows * ((top_k + 3) / 4)); // over the sums of a token
    const auto rows = static_cast<std::uint64_t>(n), width = static_cast<std::uint64_t>(returned.cols);
    return rows * (width * sizeof(T) + 4 * static_cast<std::uint64_t>(top_k) + 8) +
           static_cast<std::uint64_t>(passes) * 2 * width * sizeof(float);
  }
};

// Over rows{tokens}, once all results are kept: adds them, weighted by the gates, to out, with one rounding.
// Slots without a route are passed over and their rows not read.
struct combine_kept {
  int top_k = 1;

  template <class Team, class T, class U, class S>
  PLATEAU_HD void operator()(Team& team, index_t token, view<const std::int32_t, S> ids, // (routes)
                             tile<const float, S> gates, // (tokens, top_k); empty: all are 1
                             tile<const T, S> kept,      // (routes, width)
                             tile<U, S> out) const {     // (tokens, width), added to
    const int slots = top_k;
    const index_t n = out.cols, first = token * slots;
    const std::int32_t* id = ids.p + first;
    const float* gate = gates.rows == 0 ? nullptr : gates.row(token);
    U* to = out.row(token);

    weighted_rows<T, 8> found;
    for (int j = 0; j < slots; ++j)
      if (id[j] >= 0) found.push(kept.row(first + j), gate == nullptr ? 1.0f : gate[j]);
    if (found.count == 0) return;
    if (with_row_count<1, 2, 3, 4, 6, 8>(found, [&team, to, n](const auto& some) {
          team.for_each(n, [=](index_t c) { to[c] = narrow<U>(widen(to[c]) + some.sum(c)); });
        }))
      return;
    team.for_each(n, [=](index_t c) {
      float sum = 0.0f;
      for (int j = 0; j < slots; ++j)
        if (id[j] >= 0) sum += (gate == nullptr ? 1.0f : gate[j]) * widen(kept(first + j, c));
      to[c] = narrow<U>(widen(to[c]) + sum);
    });
  }
};

// Over rows{tokens}: adds the sums to out, or writes them there, with one rounding.
struct add_sums {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t token, tile<const float, S> sums, tile<T, S> out) const {
    const float* from = sums.row(token);
    T* to = out.row(token);
    team.for_each(out.cols, [=](index_t c) { to[c] = narrow<T>(widen(to[c]) + from[c]); });
  }
};
struct write_sums {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t token, tile<const float, S> sums, tile<T, S> out) const {
    const float* from = sums.row(token);
    T* to = out.row(token);
    team.for_each(out.cols, [=](index_t c) { to[c] = narrow<T>(from[c]); });
  }
};

// Over rows{n}: zeros.
struct clear_row {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<T, S> to) const {
    T* row = to.row(r);
    team.for_each(to.cols, [=](index_t c) { row[c] = narrow<T>(0.0F); });
  }
};

// Over the rows of a matrix: a gradient that another rank has summed, added to that of the expert's home.
struct add_matrix {
  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const float, S> from, tile<float, S> to) const {
    const float* source = from.row(r);
    float* target = to.row(r);
    team.for_each(to.cols, [=](index_t c) { target[c] += source[c]; });
  }
};

} // namespace plateau::inline v0::detail::dispatch
