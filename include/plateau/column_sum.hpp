// SPDX-License-Identifier: Apache-2.0
//
// Sums over the rows of a matrix, column by column, in an order that depends on the shape alone: blocks of
// 256 rows are summed from the top down, then the blocks. Gradients of gains and biases and the means of a
// router are such sums. Written once, on launch; every backend has it.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <string>

namespace plateau::inline v0 {

namespace detail {
inline constexpr index_t column_sum_rows = 256, column_sum_columns = 256;

constexpr index_t blocks_of(index_t n, index_t block) { return (n + block - 1) / block; }

// Block b of a grid of row blocks x column blocks: sums(row block, c) (+)= sum of x(r, c) over the rows r of
// the block. Eight rows at a time, added one after the other as single ones would be: an eighth of the team's
// barriers, and of the loads and stores of the sums.
struct column_block_sums {
  index_t column_blocks;
  index_t block_rows;
  bool accumulate;

  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t b, tile<const T, S> x, tile<float, S> sums) const {
    const index_t row_block = b / column_blocks, first_column = b % column_blocks * column_sum_columns;
    const index_t left = x.cols - first_column,
                  columns = left < column_sum_columns ? left : column_sum_columns;
    const index_t first_row = row_block * block_rows, rows_left = x.rows - first_row;
    const index_t last_row = first_row + (rows_left < block_rows ? rows_left : block_rows);
    float* to = sums.row(row_block) + first_column;
    if (!accumulate) team.for_each(columns, [=](index_t c) { to[c] = 0; });
    const index_t ld = x.ld;
    index_t r = first_row;
    for (; r + 8 <= last_row; r += 8) {
      const T* from = x.row(r) + first_column;
      team.for_each(columns, [=](index_t c) {
        const auto value = [=](index_t i) { return static_cast<float>(widen(from[i * ld + c])); };
        const float four = (((to[c] + value(0)) + value(1)) + value(2)) + value(3);
        to[c] = (((four + value(4)) + value(5)) + value(6)) + value(7);
      });
    }
    for (; r < last_row; ++r) {
      const T* from = x.row(r) + first_column;
      team.for_each(columns, [=](index_t c) { to[c] += static_cast<float>(widen(from[c])); });
    }
  }
};
} // namespace detail

// Bytes that column_sum uses beside its arguments: ceil(rows / 256) x columns of fp32.
constexpr std::size_t column_sum_scratch_bytes(index_t row_count, index_t columns) {
  return static_cast<std::size_t>(detail::blocks_of(row_count, detail::column_sum_rows) * columns) *
         sizeof(float);
}

// sums[c] += sum over r of x(r, c), in fp32. x (rows, columns), sums (columns). Enqueued on the stream.
// Throws config_error when the extents differ or the scratch is too small.
template <class Backend, class T, class S>
void column_sum(Backend& backend, on<typename Backend::stream> s, arg<tile<const T, S>, access_mode::read> x,
                arg<view<float, S>, access_mode::update> sums, scratch_view scratch) {
  static_assert(check_backend<Backend>());
  const index_t row_count = x.v.rows, columns = x.v.cols;
  if (sums.v.n != columns)
    throw config_error("plateau: column_sum: " + std::to_string(columns) + " columns into " +
                       std::to_string(sums.v.n) + " sums" + s.place().text());
  if (row_count == 0 || columns == 0) return;
  check_scratch("column_sum", column_sum_scratch_bytes(row_count, columns), scratch, s.place());
  const index_t row_blocks = detail::blocks_of(row_count, detail::column_sum_rows);
  const index_t column_blocks = detail::blocks_of(columns, detail::column_sum_columns);
  const tile<float, S> partial{reinterpret_cast<float*>(scratch.p), row_blocks, columns, columns};
  backend.launch(s, rows{row_blocks * column_blocks},
                 detail::column_block_sums{column_blocks, detail::column_sum_rows, false}, x, out(partial));
  backend.launch(s, rows{column_blocks}, detail::column_block_sums{column_blocks, row_blocks, true},
                 in(partial), inout(as_matrix(sums.v, 1, columns)));
}

} // namespace plateau::inline v0
