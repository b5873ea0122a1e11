// SPDX-License-Identifier: Apache-2.0
//
// What the built-in GEMM does around its innermost product: it copies operands into panels (widened to float,
// padded with zeros, depth outermost) and combines finished sums with C. Every element of C is combined by
// the same code on a full line of columns, edges through a padded line, so that an edge has the same bits as
// the interior.
#pragma once

#include <plateau/host/block_gemm_kernel.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>

#include <type_traits>

namespace plateau::inline v0::detail::block_gemm {

// A matrix by steps between elements, one of which is 1: op(X) is X with its steps exchanged.
template <class T> struct strided {
  T* data;
  index_t across; // between rows of op(A), or between columns of op(B); between rows of C
  index_t along;  // between terms of the sum; between columns of C

  T* at(index_t i, index_t p) const { return data + i * across + p * along; }
};

// Sixteen consecutive elements as floats: in place, or through `line`.
template <class T> inline const float* sixteen(const T* from, float* line) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
    for (int l = 0; l < 16; ++l) line[l] = widen(from[l]);
    return line;
  }
}

// Four rows of four become four columns of four.
inline void transpose_four(const float* r0, const float* r1, const float* r2, const float* r3, float* out,
                           index_t out_step) {
  const lanes4 a = *reinterpret_cast<const lanes4_in_memory*>(r0);
  const lanes4 b = *reinterpret_cast<const lanes4_in_memory*>(r1);
  const lanes4 c = *reinterpret_cast<const lanes4_in_memory*>(r2);
  const lanes4 d = *reinterpret_cast<const lanes4_in_memory*>(r3);
  const lanes4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const lanes4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const lanes4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const lanes4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const auto put = [&](index_t p, const lanes4& v) {
    *reinterpret_cast<lanes4_in_memory*>(out + p * out_step) = v;
  };
  put(0, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  put(1, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  put(2, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  put(3, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

// out (depth, Width) = the first `count` lines of `side` over `depth` terms, zeros beyond them.
template <index_t Width, class T>
inline void pack_panel(strided<const T> side, index_t count, index_t depth, float* __restrict out) {
  if (side.across == 1) { // a row of the panel is contiguous
    for (index_t p = 0; p < depth; ++p, out += Width) {
      const T* from = side.data + p * side.along;
      if (count == Width) { // a constant count, so that it vectorises
        for (index_t l = 0; l < Width; ++l) out[l] = widen(from[l]);
      } else {
        for (index_t l = 0; l < count; ++l) out[l] = widen(from[l]);
        for (index_t l = count; l < Width; ++l) out[l] = 0.0f;
      }
    }
    return;
  }
  constexpr float zeros[16] = {};
  alignas(64) float lines[4][16];
  index_t p = 0;
  for (; p + 16 <= depth; p += 16) {
    for (index_t i = 0; i < Width; i += 4) {
      const float* rows[4];
      for (index_t l = 0; l < 4; ++l)
        rows[l] = i + l < count ? sixteen(side.data + (i + l) * side.across + p, lines[l]) : zeros;
      for (index_t q = 0; q < 16; q += 4)
        transpose_four(rows[0] + q, rows[1] + q, rows[2] + q, rows[3] + q, out + (p + q) * Width + i, Width);
    }
  }
  for (; p < depth; ++p)
    for (index_t i = 0; i < Width; ++i)
      out[p * Width + i] = i < count ? widen(side.data[i * side.across + p]) : 0.0f;
}

// Runs of any length, in blocks of a constant one: what the compilers vectorise at -O2.
template <class T> inline void widen_run(const T* from, index_t n, float* __restrict to) {
  for (; n >= panel_columns; n -= panel_columns, from += panel_columns, to += panel_columns)
    for (index_t l = 0; l < panel_columns; ++l) to[l] = widen(from[l]);
  for (index_t l = 0; l < n; ++l) to[l] = widen(from[l]);
}
template <class T> inline void narrow_run(const float* from, index_t n, T* __restrict to) {
  for (; n >= panel_columns; n -= panel_columns, from += panel_columns, to += panel_columns)
    for (index_t l = 0; l < panel_columns; ++l) to[l] = narrow<T>(from[l]);
  for (index_t l = 0; l < n; ++l) to[l] = narrow<T>(from[l]);
}

// One line of columns from or to where it is stored; beyond `columns` a line is padding.
template <class T> inline void load_line(strided<const T> from, index_t columns, float* line) {
  if (from.along == 1)
    widen_run(from.data, columns, line);
  else
    for (index_t l = 0; l < columns; ++l) line[l] = widen(from.data[l * from.along]);
  for (index_t l = columns; l < panel_columns; ++l) line[l] = 0.0f;
}

template <class T> inline void store_line(strided<T> to, index_t columns, const float* line) {
  if (to.along == 1)
    narrow_run(line, columns, to.data);
  else
    for (index_t l = 0; l < columns; ++l) to.data[l * to.along] = narrow<T>(line[l]);
}

// to = alpha * sums + beta * from, for one panel; `from` is not read where beta is 0. Which of the two
// products is fused with the addition must not depend on From and To: g++ treats one expression one way,
// clang must leave both apart, as it inlines some of the instances into a function with fused multiply-add
// and others not.
template <class From, class To>
inline void combine(index_t rows, index_t columns, const float* sums, float alpha, float beta,
                    strided<const From> from, strided<To> to) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  alignas(64) float line[panel_columns];
  const bool full = columns == panel_columns && from.along == 1 && to.along == 1;
  for (index_t i = 0; i < rows; ++i, sums += panel_columns, from.data += from.across, to.data += to.across) {
    const float* before = line;
    float* after = line;
    if constexpr (std::is_same_v<To, float>) after = full ? to.data : line;
    if (beta != 0.0f) {
      if constexpr (std::is_same_v<From, float>) before = full ? from.data : line;
      if (before == line) load_line<From>({from.data, 0, from.along}, columns, line);
      PLATEAU_INDEPENDENT
      for (index_t l = 0; l < panel_columns; ++l) after[l] = alpha * sums[l] + beta * before[l];
    } else {
      PLATEAU_INDEPENDENT
      for (index_t l = 0; l < panel_columns; ++l) after[l] = alpha * sums[l];
    }
    if (after == line) store_line<To>({to.data, 0, to.along}, columns, line);
  }
}

// c = beta * c, which is all that is left of a product without terms. Not read where beta is 0.
template <class T> inline void scale(strided<T> c, index_t rows, index_t columns, float beta) {
  for (index_t i = 0; i < rows; ++i)
    for (index_t j = 0; j < columns; ++j) {
      T& element = *c.at(i, j);
      element = beta == 0.0f ? narrow<T>(0.0f) : narrow<T>(beta * widen(element));
    }
}

// The same loops compiled for each level: they vectorise after inlining, which `flatten` forces.
template <class F> [[gnu::flatten]] void at_baseline(F f) { f(); }
#if defined(__x86_64__)
template <class F> [[gnu::flatten, gnu::target("avx2,fma")]] void at_avx2(F f) { f(); }
template <class F>
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma")]] void at_avx512(F f) {
  f();
}
#endif
template <class F> void at_level(cpu_level level, F f) {
#if defined(__x86_64__)
  if (level == cpu_level::avx512) return at_avx512(f);
  if (level == cpu_level::avx2) return at_avx2(f);
#endif
  at_baseline(f);
}

} // namespace plateau::inline v0::detail::block_gemm
