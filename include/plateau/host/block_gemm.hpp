// SPDX-License-Identifier: Apache-2.0
//
// The GEMM that the host backend has built in: row-major C = alpha op(A) op(B) + beta C with float
// accumulation over the whole depth, one rounding at the end, and packing buffers of at most 1.5 MiB in the
// caller's scratch. Sums run over depth in order, in blocks of 256 that are added in order, and depend on
// nothing else: at one CPU level an element has the same bits whatever the number of rows and columns,
// wherever it stands, and however operands are stored. A bfloat16 or half C is the float C rounded once;
// bfloat16 or half operands give the bits of the same values as floats. The levels with fused multiply-add
// agree with each other, the baseline differs from them in the last places.
#pragma once

#include <plateau/gemm.hpp>
#include <plateau/host/block_gemm_pack.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace plateau::inline v0 {

namespace detail::block_gemm {

inline constexpr index_t depth_block = 256;  // 12 KiB of A's panel: stays in the first-level cache
inline constexpr index_t column_block = 512; // x depth_block: 512 KiB of B, half of a second-level cache
inline constexpr index_t row_block = 480;    // rows that accumulate in scratch when C is narrower than float
inline constexpr index_t in_place_rows = 36; // up to here, columns are read in place if they can be

// How a product is cut, and its scratch in floats, in this order: columns, rows, sums. Nothing here changes
// an element's bits, only the speed, so it may depend on m. Scratch grows with m, n and k.
struct plan {
  bool swapped;   // as C^T = op(B)^T op(A)^T: few columns make better rows
  bool in_place;  // all panels of columns but the last are read where they are stored
  bool one_panel; // a panel of columns is packed where it is needed, over the one before
  index_t rows, columns, depth;
  index_t columns_floats, rows_floats, sums_floats;

  plan(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, scalar_kind a, scalar_kind b,
       scalar_kind c)
      : swapped(n <= panel_rows && m > n), rows(swapped ? n : m), columns(swapped ? m : n), depth(k) {
    in_place = rows <= in_place_rows && (swapped ? op_a == transpose::yes && a == scalar_kind::fp32
                                                 : op_b == transpose::no && b == scalar_kind::fp32);
    one_panel = in_place || rows <= panel_rows;
    const index_t terms = std::min(depth, depth_block);
    const index_t across = std::min(columns, column_block);
    columns_floats = (one_panel ? 1 : (across + panel_columns - 1) / panel_columns) * panel_columns * terms;
    rows_floats = panel_rows * terms;
    sums_floats = c == scalar_kind::fp32 || depth <= depth_block ? 0 : std::min(rows, row_block) * across;
  }
};

// R: the side whose panels have 12 lines; S: the side whose panels have 32.
template <class R, class S, class C>
void multiply(const plan& p, strided<const R> r, strided<const S> s, float alpha, float beta, strided<C> c,
              float* scratch, cpu_level level) {
  alignas(64) float sums[panel_rows * panel_columns];
  float* const s_panels = scratch;
  float* const r_panel = s_panels + p.columns_floats;
  float* const partial = r_panel + p.rows_floats;
  const index_t row_step = p.sums_floats == 0 ? p.rows : row_block;

  for (index_t i0 = 0; i0 < p.rows; i0 += row_step) {
    const index_t i_end = std::min(p.rows, i0 + row_step);
    const index_t panels = (i_end - i0 + panel_rows - 1) / panel_rows;
    for (index_t j0 = 0; j0 < p.columns; j0 += column_block) {
      const index_t j_end = std::min(p.columns, j0 + column_block);
      // Sums between depth blocks: in C itself if it is float, else in scratch.
      strided<float> between{partial, j_end - j0, 1};
      if constexpr (std::is_same_v<C, float>) between = {c.at(i0, j0), c.across, c.along};
      for (index_t p0 = 0; p0 < p.depth; p0 += depth_block) {
        const index_t terms = std::min(depth_block, p.depth - p0);
        const bool first = p0 == 0, last = p0 + terms == p.depth;
        for (index_t panel = 0; panel < panels; ++panel) {
          const index_t i = i0 + (i_end - i0) * panel / panels; // panels of even height
          const index_t rows = i0 + (i_end - i0) * (panel + 1) / panels - i;
          at_level(level, [&] {
            pack_panel<panel_rows, R>({r.at(i, p0), r.across, r.along}, rows, terms, r_panel);
          });
          for (index_t j = j0; j < j_end; j += panel_columns) {
            const index_t columns = std::min(panel_columns, j_end - j);
            float* const packed = p.one_panel ? s_panels : s_panels + (j - j0) * terms;
            const float* s_panel = packed;
            index_t s_step = panel_columns;
            bool pack = panel == 0 || p.one_panel; // by the first rows, who find it in the nearest cache
            if constexpr (std::is_same_v<S, float>) {
              if (p.in_place && j + panel_columns < p.columns) {
                s_panel = s.at(j, p0);
                s_step = s.along;
                pack = false;
              }
            }
            if (pack)
              at_level(level, [&] {
                pack_panel<panel_columns, S>({s.at(j, p0), s.across, s.along}, columns, terms, packed);
              });
            multiply_panels(level, rows, columns, terms, r_panel, s_panel, s_step, sums);

            const strided<C> c_panel{c.at(i, j), c.across, c.along};
            const strided<const C> c_before{c_panel.data, c.across, c.along};
            const strided<float> to{between.at(i - i0, j - j0), between.across, between.along};
            const strided<const float> from{to.data, to.across, to.along};
            at_level(level, [&] {
              if (first && last)
                combine<C, C>(rows, columns, sums, alpha, beta, c_before, c_panel);
              else if (first)
                combine<C, float>(rows, columns, sums, alpha, beta, c_before, to);
              else if (last)
                combine<float, C>(rows, columns, sums, alpha, 1.0f, from, c_panel);
              else
                combine<float, float>(rows, columns, sums, alpha, 1.0f, from, to);
            });
          }
        }
      }
    }
  }
}

} // namespace detail::block_gemm

struct block_gemm {
  // A row's bits depend neither on the other rows nor on how many there are.
  static constexpr bool row_invariant = true;
  static constexpr const char* name = "block";

  // Bytes that `run` needs and, up to alignment, touches; aligned for float at least, best to 64 bytes. Does
  // not grow when m, n or k shrink.
  static std::size_t scratch_bytes(transpose op_a, transpose op_b, index_t m, index_t n, index_t k,
                                   scalar_kind a, scalar_kind b, scalar_kind c) noexcept {
    if (m <= 0 || n <= 0 || k <= 0) return 0;
    const detail::block_gemm::plan p{op_a, op_b, m, n, k, a, b, c};
    return static_cast<std::size_t>(p.columns_floats + p.rows_floats + p.sums_floats) * sizeof(float);
  }

  // C (m, n; ldc) = alpha op(A) op(B) + beta C. op(A) (m, k): A has rows of lda elements; op(B) (k, n): rows
  // of ldb. Reads no C where beta is 0, and neither A nor B where alpha or k is 0. Runs on the calling
  // thread, which `level` must suit, allocates nothing, throws nothing; calls may run at the same time on
  // different scratch.
  template <class A, class B, class C>
  static void run(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, float alpha, const A* a,
                  index_t lda, const B* b, index_t ldb, float beta, C* c, index_t ldc, void* scratch,
                  cpu_level level) noexcept {
    using namespace detail::block_gemm;
    if (m <= 0 || n <= 0) return;
    if (k <= 0 || alpha == 0.0f) {
      if (beta != 1.0f) detail::block_gemm::scale<C>({c, ldc, 1}, m, n, beta);
      return;
    }
    const plan p{op_a, op_b, m, n, k, scalar_kind_of<A>, scalar_kind_of<B>, scalar_kind_of<C>};
    const strided<const A> rows =
        op_a == transpose::no ? strided<const A>{a, lda, 1} : strided<const A>{a, 1, lda};
    const strided<const B> columns =
        op_b == transpose::no ? strided<const B>{b, 1, ldb} : strided<const B>{b, ldb, 1};
    auto* const buffer = static_cast<float*>(scratch);
    if (p.swapped)
      multiply<B, A, C>(p, columns, rows, alpha, beta, {c, 1, ldc}, buffer, level);
    else
      multiply<A, B, C>(p, rows, columns, alpha, beta, {c, ldc, 1}, buffer, level);
  }
};

} // namespace plateau::inline v0
