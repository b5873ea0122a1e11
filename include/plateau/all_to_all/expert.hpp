// SPDX-License-Identifier: Apache-2.0
//
// What a user gives the dispatch to run on each round of rows: an expert, which gets everything that it needs
// as arguments and keeps nothing between calls, so that one object serves every layer and the round's memory
// can be used again by the next round. Rows of one expert are one block of the round, a group.
//
//   struct my_expert {
//     using weight_type = bfloat16;
//     std::span<const matrix_extent> weight_parts() const;                  // of one expert; may be empty
//     std::size_t forward_scratch_bytes(index_t most_rows, index_t most_groups) const;
//     std::size_t backward_scratch_bytes(index_t most_rows, index_t most_groups) const;
//     void forward(Stream&, const expert_groups<weight_type>&, const row_parts<Part...>& rows,
//                  tile<Result> results, scratch_view);
//     void backward(Stream&, const expert_groups<weight_type>&, const row_parts<Part...>& rows,
//                   view<const float> gates, tile<const Result> dresults, tile<Row> drows,
//                   view<float> dgates, scratch_view);
//   };
//
// Both only enqueue on the stream. forward writes every row of `results`. backward is given the gradient of
// the sum that the gates weigh, so it multiplies by the gate itself: with y = expert(x) and the row's
// upstream gradient g, dgate = <g, y>, written, and dx from gate * g, written; gradients of weights are
// added, in fp32, to groups.gradient(...). An expert that is given no rows is in no group: its weights are
// not read.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <concepts>
#include <span>
#include <tuple>
#include <type_traits>

namespace plateau::inline v0 {

struct matrix_extent {
  index_t rows = 0, cols = 0;

  constexpr index_t elements() const { return rows * cols; }
  friend constexpr bool operator==(const matrix_extent&, const matrix_extent&) = default;
};

// What the rows of a round carry, one matrix for each part: the hidden state first, then whatever the user
// has added, all with the same number of rows.
template <class... Part> using row_parts = std::tuple<tile<const Part>...>;

// The groups of a round; all of them have rows.
template <class W> struct expert_groups {
  std::span<const index_t> experts; // (groups) which expert of the layer, in [0, experts)
  std::span<const index_t> offsets; // (groups + 1) group g has the rows [offsets[g], offsets[g + 1])
  std::span<const tile<const W>> all_weights; // (groups x parts), group by group
  std::span<const tile<float>> all_gradients; // the same, empty in forward; added to

  index_t size() const { return static_cast<index_t>(experts.size()); }
  index_t rows(index_t group) const {
    return offsets[static_cast<std::size_t>(group) + 1] - offsets[static_cast<std::size_t>(group)];
  }
  index_t first(index_t group) const { return offsets[static_cast<std::size_t>(group)]; }
  tile<const W> weight(index_t group, index_t part) const { return all_weights[at(group, part)]; }
  tile<float> gradient(index_t group, index_t part) const { return all_gradients[at(group, part)]; }
  // All parts of one group.
  std::span<const tile<const W>> weights(index_t group) const {
    return all_weights.subspan(at(group, 0), parts());
  }
  std::span<const tile<float>> gradients(index_t group) const {
    return all_gradients.subspan(at(group, 0), parts());
  }

 private:
  std::size_t parts() const { return experts.empty() ? 0 : all_weights.size() / experts.size(); }
  std::size_t at(index_t group, index_t part) const {
    return static_cast<std::size_t>(group) * parts() + static_cast<std::size_t>(part);
  }
};

// What comes back for a row of the user's own type: specialise it where the first part is not a number. A
// row that has a gradient has elements of a floating-point type.
template <class Part> struct row_traits { using result_type = Part; };
template <class Part> using row_result = typename row_traits<Part>::result_type;

// Numbers that the dispatch can add: its sums are in float, which would spoil those of double.
template <class T>
concept summed_in_float = (floating_scalar<T> && std::same_as<accumulate_t<T>, float>);

namespace probe {
template <class E>
concept expert_weights = requires(const E& e) {
  typename E::weight_type;
  { e.weight_parts() } -> std::convertible_to<std::span<const matrix_extent>>;
};
template <class E, class B, class... Part>
concept expert_forward = requires(E& e, typename B::stream& s,
                                  const expert_groups<typename E::weight_type>& groups,
                                  const row_parts<Part...>& rows,
                                  tile<row_result<std::tuple_element_t<0, std::tuple<Part...>>>> y,
                                  scratch_view w) {
  { e.forward_scratch_bytes(index_t{}, index_t{}) } -> std::convertible_to<std::size_t>;
  e.forward(s, groups, rows, y, w);
};
template <class E, class B, class... Part>
concept expert_backward = requires(E& e, typename B::stream& s,
                                   const expert_groups<typename E::weight_type>& groups,
                                   const row_parts<Part...>& rows, view<const float> gates,
                                   view<float> dgates,
                                   tile<const row_result<std::tuple_element_t<0, std::tuple<Part...>>>> dy,
                                   tile<std::tuple_element_t<0, std::tuple<Part...>>> dx, scratch_view w) {
  { e.backward_scratch_bytes(index_t{}, index_t{}) } -> std::convertible_to<std::size_t>;
  e.backward(s, groups, rows, gates, dy, dx, dgates, w);
};
} // namespace probe

// An expert for rows of these parts on the backend B; with backward or without.
template <class E, class B, class... Part>
concept expert_of = probe::expert_weights<E> && probe::expert_forward<E, B, Part...>;
template <class E, class B, class... Part>
concept trainable_expert_of = expert_of<E, B, Part...> && probe::expert_backward<E, B, Part...>;

// True, or the compilation stops with a sentence for each missing member.
template <class E, class B, class... Part> constexpr bool check_expert() {
  static_assert(probe::expert_weights<E>,
                "plateau expert: needs a type weight_type and weight_parts() const, giving a span of "
                "matrix_extent: the matrices of one expert");
  if constexpr (probe::expert_weights<E>)
    static_assert(probe::expert_forward<E, B, Part...>,
                  "plateau expert: needs forward_scratch_bytes(most_rows, most_groups) const and "
                  "forward(stream&, const expert_groups<weight_type>&, const row_parts<Part...>&, "
                  "tile<Result> results, scratch_view)");
  return true;
}
template <class E, class B, class... Part> constexpr bool check_trainable_expert() {
  static_assert(check_expert<E, B, Part...>());
  if constexpr (probe::expert_weights<E>)
    static_assert(probe::expert_backward<E, B, Part...>,
                  "plateau expert: needs backward_scratch_bytes(most_rows, most_groups) const and "
                  "backward(stream&, const expert_groups<weight_type>&, const row_parts<Part...>&, "
                  "view<const float> gates, tile<const Result> dresults, tile<Row> drows, view<float> "
                  "dgates, scratch_view)");
  return true;
}

} // namespace plateau::inline v0
