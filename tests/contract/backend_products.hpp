// SPDX-License-Identifier: Apache-2.0
//
// The backend contract: matrix products, one, in batches and in groups, against float64 sums of the same
// widened values; strided operands, padding untouched; what does not fit is refused before anything is
// issued; a row_invariant backend gives a row the same bits alone and among others.
#pragma once

#include "backend_rig.hpp"

#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace backend_contract {

inline constexpr transpose both_ways[] = {transpose::no, transpose::yes};

// A matrix, or `count` of them, with a host copy; rows `padding` elements longer than they seem.
template <class T, class Backend> struct matrix {
  index_t rows, columns, ld, count, stride;
  std::vector<T> values;
  pl::device_buffer<T, Backend> storage;

  matrix(rig<Backend>& r, index_t row_count, index_t column_count, std::uint32_t seed, index_t tiles = 1)
      : rows(row_count), columns(column_count), ld(column_count + 3), count(tiles), stride(rows * ld + 5),
        values(numbers<T>(count * stride, seed)), storage(r.upload(values)) {}
  matrix(rig<Backend>& r, transpose op, index_t m, index_t n, std::uint32_t seed, index_t tiles = 1)
      : matrix(r, op == transpose::no ? m : n, op == transpose::no ? n : m, seed, tiles) {}

  pl::tile<T> tile(index_t i = 0) const { return {storage.data() + i * stride, rows, columns, ld}; }
  pl::tile_batch<T> batch() const { return {storage.data(), count, stride, rows, columns, ld}; }
  double at(transpose op, index_t row, index_t column, index_t i = 0) const {
    const index_t place = op == transpose::no ? row * ld + column : column * ld + row;
    return float(values[static_cast<std::size_t>(i * stride + place)]);
  }
};

// c, computed by the backend, against the oracle; beta is what was multiplied with c's values from before.
// Leaves the new values in c, after checking that the padding has its old ones.
template <class A, class B, class C, class Backend>
void check_against_oracle(rig<Backend>& r, transpose op_a, transpose op_b, float alpha,
                          const matrix<A, Backend>& a, const matrix<B, Backend>& b, float beta,
                          matrix<C, Backend>& c, index_t a_step = 1) {
  const std::vector<C> got = r.download(c.storage.all());
  const index_t k = op_a == transpose::no ? a.columns : a.rows;
  const double unit = std::is_same_v<C, float> ? 0 : 0x1p-8;
  double worst = 0;
  std::vector<C> padding = got;
  for (index_t t = 0; t < c.count; ++t)
    for (index_t i = 0; i < c.rows; ++i)
      for (index_t j = 0; j < c.columns; ++j) {
        const auto place = static_cast<std::size_t>(t * c.stride + i * c.ld + j);
        double sum = beta == 0 ? 0 : beta * double(float(c.values[place])), size = std::abs(sum);
        for (index_t p = 0; p < k; ++p) {
          const double term = alpha * a.at(op_a, i, p, t * a_step) * b.at(op_b, p, j, t);
          sum += term;
          size += std::abs(term);
        }
        const double share =
            std::abs(float(got[place]) - sum) / (0x1p-20 * size + unit * std::abs(sum) + 0x1p-30);
        worst = share <= worst ? worst : share; // a NaN stays
        padding[place] = c.values[place];
      }
  CHECK(worst <= 1);
  CHECK(same_bits(padding, c.values));
  c.values = got;
}

template <class A, class B, class C, class Backend>
auto scratch_for(rig<Backend>& r, transpose op_a, transpose op_b, index_t m, index_t n, index_t k) {
  return r.template device<unsigned char>(
      static_cast<index_t>(Backend::template gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k)));
}

template <class A, class B, class C, class Backend>
void check_product(rig<Backend>& r, transpose op_a, transpose op_b, index_t m, index_t n, index_t k) {
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(static_cast<int>(op_a));
  CAPTURE(static_cast<int>(op_b));
  const matrix<A, Backend> a(r, op_a, m, k, 1);
  const matrix<B, Backend> b(r, op_b, k, n, 2);
  matrix<C, Backend> c(r, m, n, 3);
  auto scratch = scratch_for<A, B, C>(r, op_a, op_b, m, n, k);
  const pl::counters before = r.b.counters();
  r.b.gemm(r.s, op_a, op_b, 1.0F, in(a.tile()), in(b.tile()), 0.0F, out(c.tile()), scratch.all());
  check_against_oracle(r, op_a, op_b, 1.0F, a, b, 0.0F, c);
  r.b.gemm(r.s, op_a, op_b, -0.5F, in(a.tile()), in(b.tile()), 1.0F, inout(c.tile()), scratch.all());
  check_against_oracle(r, op_a, op_b, -0.5F, a, b, 1.0F, c);
  const pl::counters spent = r.b.counters() - before;
  CHECK(spent.matrix_products == 2);
  CHECK(spent.matrix_flops == 2 * static_cast<std::uint64_t>(2 * m * n * k));
}

template <class Backend> void products(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  for (const transpose op_a : both_ways)
    for (const transpose op_b : both_ways) {
      check_product<float, float, float>(r, op_a, op_b, 1, 1, 1);
      check_product<float, float, float>(r, op_a, op_b, 13, 33, 70);
      check_product<pl::bfloat16, pl::bfloat16, float>(r, op_a, op_b, 13, 35, 40);
      check_product<pl::bfloat16, pl::bfloat16, pl::bfloat16>(r, op_a, op_b, 17, 12, 40);
    }
  check_product<float, float, float>(r, transpose::no, transpose::yes, 30, 65, 600);

  // What c held does not matter where beta is 0, and without terms only beta counts.
  const matrix<float, Backend> a(r, 3, 4, 1), b(r, 4, 5, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto c = r.upload(std::vector<float>(15, nan));
  auto scratch = scratch_for<float, float, float>(r, transpose::no, transpose::no, 3, 5, 4);
  r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(a.tile()), in(b.tile()), 0.0F, out(c.matrix(3, 5)),
           scratch.all());
  for (const float v : r.download(c.all())) CHECK(std::isfinite(v));
  const pl::counters before = r.b.counters();
  const tile<float> thin{nullptr, 3, 0, 0}, flat{nullptr, 0, 5, 5};
  auto d = r.upload(std::vector<float>(15, 8.0F));
  r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(thin), in(flat), 1.0F, inout(d.matrix(3, 5)),
           scratch.all());
  CHECK(r.download(d.all()) == std::vector<float>(15, 8.0F));
  r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(thin), in(flat), 0.5F, inout(d.matrix(3, 5)),
           scratch.all());
  CHECK(r.download(d.all()) == std::vector<float>(15, 4.0F));
  r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(thin), in(flat), 0.0F, out(d.matrix(3, 5)),
           scratch.all());
  CHECK(r.download(d.all()) == std::vector<float>(15, 0.0F));
  CHECK((r.b.counters() - before).matrix_products == 0);
}

template <class Backend> void batched_products(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  const index_t m = 9, n = 20, k = 33, tiles = 4;
  const auto check = [&]<class T>(T, transpose op_a, transpose op_b) {
    matrix<T, Backend> a(r, op_a, m, k, 1, tiles);
    const matrix<T, Backend> b(r, op_b, k, n, 2, tiles);
    matrix<float, Backend> c(r, m, n, 3, tiles);
    auto scratch = scratch_for<T, T, float>(r, op_a, op_b, m, n, k);
    const pl::counters before = r.b.counters();
    r.b.gemm(r.s, op_a, op_b, 2.0F, in(a.batch()), in(b.batch()), 0.0F, out(c.batch()), scratch.all());
    check_against_oracle(r, op_a, op_b, 2.0F, a, b, 0.0F, c);
    r.b.gemm(r.s, op_a, op_b, 1.0F, in(a.batch()), in(b.batch()), 1.0F, inout(c.batch()), scratch.all());
    check_against_oracle(r, op_a, op_b, 1.0F, a, b, 1.0F, c);
    CHECK((r.b.counters() - before).matrix_products == 8);
    // A stride of 0 reads one operand again and again.
    auto same = a.batch();
    same.stride = 0;
    r.b.gemm(r.s, op_a, op_b, 1.0F, in(same), in(b.batch()), 0.0F, out(c.batch()), scratch.all());
    check_against_oracle(r, op_a, op_b, 1.0F, a, b, 0.0F, c, 0);
  };
  for (const transpose op_a : both_ways)
    for (const transpose op_b : both_ways) {
      check(0.0F, op_a, op_b);
      check(pl::bfloat16(0.0F), op_a, op_b);
    }
}

// Experts: the rows of a buffer, cut by offsets, times one weight each; and the weights' gradients, where a
// group of no rows has no terms.
template <class Backend> void grouped_products(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  const index_t offsets[] = {0, 5, 5, 18, 19, 19}, groups = 5, hidden = 24, out_columns = 17, row_count = 19;
  using group = pl::gemm_group<pl::bfloat16, pl::bfloat16, float>;
  const matrix<pl::bfloat16, Backend> x(r, row_count, hidden, 1), w(r, hidden, out_columns, 2, groups),
      dy(r, row_count, out_columns, 3);
  matrix<float, Backend> y(r, row_count, out_columns, 4), dw(r, hidden, out_columns, 5, groups);
  const auto y_before = y.values, dw_before = dw.values;
  std::vector<group> forward, gradients;
  for (index_t g = 0; g < groups; ++g) {
    const index_t first = offsets[g], n = offsets[g + 1] - first;
    forward.push_back({x.tile().row_block(first, n), w.tile(g), y.tile().row_block(first, n)});
    gradients.push_back({x.tile().row_block(first, n), dy.tile().row_block(first, n), dw.tile(g)});
  }
  auto scratch = scratch_for<pl::bfloat16, pl::bfloat16, float>(r, transpose::no, transpose::no, row_count,
                                                                hidden, hidden);
  auto scratch_of_gradients = scratch_for<pl::bfloat16, pl::bfloat16, float>(r, transpose::yes, transpose::no,
                                                                             hidden, out_columns, row_count);
  const pl::counters before = r.b.counters();
  r.b.grouped_gemm(r.s, transpose::no, transpose::no, 1.0F, 0.0F, std::span<const group>(forward),
                   scratch.all());
  const auto y_got = r.download(y.storage.all());
  CHECK((r.b.counters() - before).matrix_products == 3);
  r.b.grouped_gemm(r.s, transpose::yes, transpose::no, 1.0F, 1.0F, std::span<const group>(gradients),
                   scratch_of_gradients.all());
  const auto dw_got = r.download(dw.storage.all());
  CHECK((r.b.counters() - before).matrix_products == 6);

  double worst = 0;
  const auto compare = [&](float got, double sum, double size) {
    const double share = std::abs(got - sum) / (0x1p-20 * size + 0x1p-30);
    worst = share <= worst ? worst : share;
  };
  for (index_t g = 0; g < groups; ++g) {
    for (index_t i = offsets[g]; i < offsets[g + 1]; ++i)
      for (index_t j = 0; j < out_columns; ++j) {
        double sum = 0, size = 0;
        for (index_t p = 0; p < hidden; ++p) {
          const double term = x.at(transpose::no, i, p) * w.at(transpose::no, p, j, g);
          sum += term;
          size += std::abs(term);
        }
        compare(y_got[static_cast<std::size_t>(i * y.ld + j)], sum, size);
      }
    for (index_t p = 0; p < hidden; ++p)
      for (index_t j = 0; j < out_columns; ++j) {
        const auto place = static_cast<std::size_t>(g * dw.stride + p * dw.ld + j);
        double sum = dw_before[place], size = std::abs(sum);
        for (index_t i = offsets[g]; i < offsets[g + 1]; ++i) {
          const double term = x.at(transpose::no, i, p) * dy.at(transpose::no, i, j);
          sum += term;
          size += std::abs(term);
        }
        compare(dw_got[place], sum, size);
        if (offsets[g] == offsets[g + 1]) CHECK(dw_got[place] == dw_before[place]);
      }
  }
  CHECK(worst <= 1);
  for (index_t i = 0; i < row_count; ++i) // the padding
    for (index_t j = out_columns; j < y.ld; ++j) {
      const auto place = static_cast<std::size_t>(i * y.ld + j);
      CHECK(y_got[place] == y_before[place]);
    }
}

template <class Backend> void refusals_of_products(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  const matrix<pl::bfloat16, Backend> a(r, 4, 6, 1), b(r, 6, 8, 2), wrong(r, 5, 8, 3);
  const matrix<float, Backend> c(r, 4, 8, 4), c_wrong(r, 4, 9, 5);
  const std::size_t needed = Backend::template gemm_scratch_bytes<pl::bfloat16, pl::bfloat16, float>(
      transpose::no, transpose::no, 4, 8, 6);
  auto scratch = r.template device<unsigned char>(static_cast<index_t>(needed));
  const pl::counters before = r.b.counters();
  const auto gemm = [&](const auto& left, const auto& right, float beta, auto result, pl::scratch_view w) {
    const int first = __LINE__;
    const std::string text = refusal([&] {
      r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(left.tile()), in(right.tile()), beta, result, w);
    });
    CHECK(names_line(text, "backend_products.hpp", first, __LINE__));
    return text;
  };
  std::string text = gemm(a, wrong, 0, out(c.tile()), scratch.all());
  CHECK(has(text, "(4, 6)"));
  CHECK(has(text, "(5, 8)"));
  CHECK(has(text, "(4, 8)"));
  text = gemm(a, b, 0, out(c_wrong.tile()), scratch.all());
  CHECK(has(text, "(4, 9)"));
  text = gemm(a, b, 1, out(c.tile()), scratch.all());
  CHECK(has(text, "inout(c)"));
  if (needed > 0) {
    text = gemm(a, b, 0, out(c.tile()), scratch.first(static_cast<index_t>(needed) - 1));
    CHECK(has(text,
              "needs " + std::to_string(needed) + " bytes of scratch, got " + std::to_string(needed - 1)));
  }
  const matrix<pl::bfloat16, Backend> a3(r, 4, 6, 1, 3), b4(r, 6, 8, 2, 4);
  const matrix<float, Backend> c4(r, 4, 8, 4, 4);
  int line = __LINE__;
  text = refusal([&] {
    r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(a3.batch()), in(b4.batch()), 0.0F, out(c4.batch()),
             scratch.all());
  });
  CHECK(has(text, "3 and 4 against 4"));
  CHECK(names_line(text, "backend_products.hpp", line, __LINE__));
  // Of a grouped product that is refused nothing is issued, the groups that fit included.
  using group = pl::gemm_group<pl::bfloat16, pl::bfloat16, float>;
  const group groups[] = {{a.tile(), b.tile(), c.tile()}, {a.tile(), b.tile(), c_wrong.tile()}};
  line = __LINE__;
  text = refusal([&] {
    r.b.grouped_gemm(r.s, transpose::no, transpose::no, 1.0F, 1.0F, std::span<const group>(groups),
                     scratch.all());
  });
  CHECK(has(text, "(4, 9)"));
  CHECK(names_line(text, "backend_products.hpp", line, __LINE__));
  const pl::counters spent = r.b.counters() - before;
  CHECK(spent.matrix_products == 0);
  if constexpr (has_data<Backend>) CHECK(same_bits(r.download(c.storage.all()), c.values));
}

// Bits of rows alone and in a batch (where promised), and of the same product twice (always).
template <class Backend> void bits_of_products(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  const auto check = [&]<class T>(T, transpose op_b, index_t m, index_t n, index_t k) {
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    const matrix<T, Backend> a(r, m, k, 1), b(r, op_b, k, n, 2);
    const matrix<float, Backend> c(r, m, n, 3), again(r, m, n, 3);
    auto scratch = scratch_for<T, T, float>(r, transpose::no, op_b, m, n, k);
    const auto multiply = [&](index_t first, index_t count, const matrix<float, Backend>& to) {
      r.b.gemm(r.s, transpose::no, op_b, 1.0F, in(a.tile().row_block(first, count)), in(b.tile()), 1.0F,
               inout(to.tile().row_block(first, count)), scratch.all());
    };
    multiply(0, m, c);
    multiply(0, m, again);
    const auto whole = r.download(c.storage.all());
    CHECK(same_bits(whole, r.download(again.storage.all())));
    if (!Backend::row_invariant) return;
    const matrix<float, Backend> alone(r, m, n, 3), halves(r, m, n, 3);
    for (index_t i = 0; i < m; ++i) multiply(i, 1, alone);
    CHECK(same_bits(whole, r.download(alone.storage.all())));
    multiply(0, m / 2, halves);
    multiply(m / 2, m - m / 2, halves);
    CHECK(same_bits(whole, r.download(halves.storage.all())));
  };
  for (const transpose op_b : both_ways) {
    check(0.0F, op_b, 29, 40, 300);
    check(pl::bfloat16(0.0F), op_b, 13, 70, 65);
    check(0.0F, op_b, 3, 1, 17);
  }
}

} // namespace backend_contract
