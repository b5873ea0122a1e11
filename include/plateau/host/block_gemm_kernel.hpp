// SPDX-License-Identifier: Apache-2.0
//
// The innermost product of the built-in GEMM: a panel of 12 rows times a panel of 32 columns, summed over one
// depth block in registers. Every element is one chain `sum = sum + a * b` in order of depth, whatever the
// register tile, so the bits of an element depend neither on its place in the panel nor on how many rows and
// columns are in use. Levels with fused multiply-add round once per term, the baseline twice: bits may differ
// between these two kinds of CPU only. The tiles use vector extensions, each lexically inside a function with
// its target, because the compilers split wide vectors of a function before they inline it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/cpu_dispatch.hpp>

#include <cstddef>
#include <utility>

namespace plateau::inline v0::detail::block_gemm {

inline constexpr index_t panel_rows = 12;    // 1 tile with AVX-512, 2 with AVX2, 3 at the baseline
inline constexpr index_t panel_columns = 32; // 1, 2 and 4

// Calls f with the smallest instantiated row count that is at least `rows`: rows beyond are sums of zeros.
template <index_t Most, class F> [[gnu::always_inline]] inline void with_rows(index_t rows, F f) {
  if constexpr (Most > 6) {
    if (rows > 10) return f(std::make_index_sequence<12>{});
    if (rows > 8) return f(std::make_index_sequence<10>{});
    if (rows > 6) return f(std::make_index_sequence<8>{});
  }
  if constexpr (Most > 4) {
    if (rows > 4) return f(std::make_index_sequence<6>{});
  }
  if (rows > 2) return f(std::make_index_sequence<4>{});
  if (rows > 1) return f(std::make_index_sequence<2>{});
  f(std::make_index_sequence<1>{});
}

// The tiles: a (depth, panel_rows), b (depth, ldb), sums (panel_rows, panel_columns). `Wide` is two vectors
// across, otherwise one.

using lanes4 [[gnu::vector_size(16)]] = float;
using lanes4_in_memory [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;

// sum + a * b. Fused by name where the target has it: left to the compiler, g++ tuned for some CPUs fuses in
// one tile and not in the next. A float minus a vector of zeros is that float in every lane.
[[gnu::always_inline]] inline void add_product(lanes4& sum, float a, const lanes4& b) {
#if defined(__FMA__)
  sum = __builtin_ia32_vfmaddps(a - lanes4{}, b, sum);
#else
  sum += a * b;
#endif
}

template <std::size_t... Row>
[[gnu::noinline]] void tile_baseline(index_t depth, const float* a, const float* b, index_t ldb, float* sums,
                                     std::index_sequence<Row...>) {
  lanes4 low[sizeof...(Row)] = {}, high[sizeof...(Row)] = {};
  for (; depth > 0; --depth, a += panel_rows, b += ldb) {
    const lanes4 b_low = *reinterpret_cast<const lanes4_in_memory*>(b);
    const lanes4 b_high = *reinterpret_cast<const lanes4_in_memory*>(b + 4);
    ((add_product(low[Row], a[Row], b_low), add_product(high[Row], a[Row], b_high)), ...);
  }
  ((*reinterpret_cast<lanes4_in_memory*>(sums + Row * panel_columns) = low[Row],
    *reinterpret_cast<lanes4_in_memory*>(sums + Row * panel_columns + 4) = high[Row]),
   ...);
}

inline void multiply_baseline(index_t rows, index_t columns, index_t depth, const float* a, const float* b,
                              index_t ldb, float* sums) {
  for (index_t j = 0; j < columns; j += 8)
    for (index_t i = 0; i < rows; i += 4)
      with_rows<4>(rows - i, [&](auto count) {
        tile_baseline(depth, a + i, b + j, ldb, sums + i * panel_columns + j, count);
      });
}

#if defined(__x86_64__)
using lanes8 [[gnu::vector_size(32)]] = float;
using lanes8_in_memory [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void add_product(lanes8& sum, float a,
                                                                        const lanes8& b) {
  sum = __builtin_ia32_vfmaddps256(a - lanes8{}, b, sum);
}

template <bool Wide, std::size_t... Row>
[[gnu::target("avx2,fma"), gnu::noinline]] void tile_avx2(index_t depth, const float* a, const float* b,
                                                          index_t ldb, float* sums,
                                                          std::index_sequence<Row...>) {
  lanes8 low[sizeof...(Row)] = {}, high[sizeof...(Row)] = {};
  for (; depth > 0; --depth, a += panel_rows, b += ldb) {
    const lanes8 b_low = *reinterpret_cast<const lanes8_in_memory*>(b);
    if constexpr (Wide) {
      const lanes8 b_high = *reinterpret_cast<const lanes8_in_memory*>(b + 8);
      ((add_product(low[Row], a[Row], b_low), add_product(high[Row], a[Row], b_high)), ...);
    } else {
      (add_product(low[Row], a[Row], b_low), ...);
    }
  }
  ((*reinterpret_cast<lanes8_in_memory*>(sums + Row * panel_columns) = low[Row]), ...);
  if constexpr (Wide)
    ((*reinterpret_cast<lanes8_in_memory*>(sums + Row * panel_columns + 8) = high[Row]), ...);
}

inline void multiply_avx2(index_t rows, index_t columns, index_t depth, const float* a, const float* b,
                          index_t ldb, float* sums) {
  const index_t step = rows > 6 ? (rows + 1) / 2 : rows; // two tiles of even height
  for (index_t j = 0; j < columns; j += 16)
    for (index_t i = 0; i < rows; i += step)
      with_rows<6>(step, [&](auto count) {
        float* into = sums + i * panel_columns + j;
        if (columns - j > 8)
          tile_avx2<true>(depth, a + i, b + j, ldb, into, count);
        else
          tile_avx2<false>(depth, a + i, b + j, ldb, into, count);
      });
}

using lanes16 [[gnu::vector_size(64)]] = float;
using lanes16_in_memory [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;

// All lanes; 4: rounds as the mode says.
[[gnu::target("avx512f"), gnu::always_inline]] inline void add_product(lanes16& sum, float a,
                                                                       const lanes16& b) {
  sum = __builtin_ia32_vfmaddps512_mask(a - lanes16{}, b, sum, static_cast<short>(-1), 4);
}

template <bool Wide, std::size_t... Row>
[[gnu::target("avx512f"), gnu::noinline]] void tile_avx512(index_t depth, const float* a, const float* b,
                                                           index_t ldb, float* sums,
                                                           std::index_sequence<Row...>) {
  lanes16 low[sizeof...(Row)] = {}, high[sizeof...(Row)] = {};
  for (; depth > 0; --depth, a += panel_rows, b += ldb) {
    const lanes16 b_low = *reinterpret_cast<const lanes16_in_memory*>(b);
    if constexpr (Wide) {
      const lanes16 b_high = *reinterpret_cast<const lanes16_in_memory*>(b + 16);
      ((add_product(low[Row], a[Row], b_low), add_product(high[Row], a[Row], b_high)), ...);
    } else {
      (add_product(low[Row], a[Row], b_low), ...);
    }
  }
  ((*reinterpret_cast<lanes16_in_memory*>(sums + Row * panel_columns) = low[Row]), ...);
  if constexpr (Wide)
    ((*reinterpret_cast<lanes16_in_memory*>(sums + Row * panel_columns + 16) = high[Row]), ...);
}

inline void multiply_avx512(index_t rows, index_t columns, index_t depth, const float* a, const float* b,
                            index_t ldb, float* sums) {
  with_rows<12>(rows, [&](auto count) {
    if (columns > 16)
      tile_avx512<true>(depth, a, b, ldb, sums, count);
    else
      tile_avx512<false>(depth, a, b, ldb, sums, count);
  });
}
#endif

// sums (panel_rows, panel_columns) = a (depth, panel_rows), transposed, times b (depth, ldb). Only the first
// `rows` and `columns` are meaningful; those up to the next whole tile are read (zeros in a packed panel) and
// written, except that a caller who does not pack b passes columns = panel_columns.
inline void multiply_panels(cpu_level level, index_t rows, index_t columns, index_t depth, const float* a,
                            const float* b, index_t ldb, float* sums) {
#if defined(__x86_64__)
  if (level == cpu_level::avx512) return multiply_avx512(rows, columns, depth, a, b, ldb, sums);
  if (level == cpu_level::avx2) return multiply_avx2(rows, columns, depth, a, b, ldb, sums);
#endif
  multiply_baseline(rows, columns, depth, a, b, ldb, sums);
}

} // namespace plateau::inline v0::detail::block_gemm
