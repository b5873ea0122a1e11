// SPDX-License-Identifier: Apache-2.0
//
// An expert of the dispatch made from a function of one expert, which is called for one group after the
// other. Enough where an expert is not a matrix product, or its rows are many; products of small groups are
// faster together (grouped_gemm), which a function of one expert cannot see.
//
//   struct one_expert {
//     using weight_type = float;
//     std::span<const matrix_extent> weight_parts() const;
//     std::size_t forward_scratch_bytes(index_t most_rows) const;
//     std::size_t backward_scratch_bytes(index_t most_rows) const;           // only with backward
//     void forward(Stream&, std::span<const tile<const float>> weights, const row_parts<Part...>& rows,
//                  tile<Result> results, scratch_view);
//     void backward(Stream&, std::span<const tile<const float>> weights, const row_parts<Part...>& rows,
//                   view<const float> gates, tile<const Result> dresults, tile<Row> drows,
//                   view<float> dgates, std::span<const tile<float>> gradients, scratch_view);
//   };
#pragma once

#include <plateau/all_to_all/expert.hpp>
#include <plateau/config.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

namespace plateau::inline v0 {

template <class One> class each_expert {
 public:
  using weight_type = typename One::weight_type;

  explicit each_expert(One one) : one_(std::move(one)) {}

  std::span<const matrix_extent> weight_parts() const { return one_.weight_parts(); }
  // Groups follow one another on the stream, so that one after the other has all of it.
  std::size_t forward_scratch_bytes(index_t most_rows, index_t) const {
    return one_.forward_scratch_bytes(most_rows);
  }
  std::size_t backward_scratch_bytes(index_t most_rows, index_t) const requires requires(const One& one) {
    one.backward_scratch_bytes(index_t{});
  }
  { return one_.backward_scratch_bytes(most_rows); }

  template <class Stream, class Result, class... Part>
  void forward(Stream& s, const expert_groups<weight_type>& groups,
               const std::tuple<tile<const Part>...>& rows, tile<Result> results, scratch_view scratch) {
    for (index_t g = 0; g < groups.size(); ++g)
      one_.forward(s, groups.weights(g), rows_of(groups, g, rows),
                   results.row_block(groups.first(g), groups.rows(g)), scratch);
  }
  // One more parameter, so that a function without backward is no error but no match.
  template <class Stream, class Result, class Row, class Some = One, class... Part>
  auto backward(Stream& s, const expert_groups<weight_type>& groups,
                const std::tuple<tile<const Part>...>& rows, view<const float> gates,
                tile<const Result> dresults, tile<Row> drows, view<float> dgates, scratch_view scratch)
      -> decltype(std::declval<Some&>().backward(s, groups.weights(0), rows, gates, dresults, drows, dgates,
                                                 groups.gradients(0), scratch)) {
    for (index_t g = 0; g < groups.size(); ++g) {
      const index_t first = groups.first(g), n = groups.rows(g);
      one_.backward(s, groups.weights(g), rows_of(groups, g, rows), gates.sub(first, n),
                    dresults.row_block(first, n), drows.row_block(first, n), dgates.sub(first, n),
                    groups.gradients(g), scratch);
    }
  }

 private:
  template <class... Part>
  static std::tuple<tile<const Part>...> rows_of(const expert_groups<weight_type>& groups, index_t g,
                                                 const std::tuple<tile<const Part>...>& rows) {
    const index_t first = groups.first(g), n = groups.rows(g);
    return std::apply(
        [&](const tile<const Part>&... part) {
          return std::tuple<tile<const Part>...>(part.row_block(first, n)...);
        },
        rows);
  }
  One one_;
};

} // namespace plateau::inline v0
