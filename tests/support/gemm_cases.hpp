// SPDX-License-Identifier: Apache-2.0
//
// What every GEMM policy of the host backend must do, asked of one policy: products against float64 sums of
// the same widened values, at element alignment, with padding around every row and canaries around the
// scratch.
#pragma once

#include <doctest/doctest.h>

#include <plateau/gemm.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/scalar.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace gemm_cases {

namespace pl = plateau;
using pl::index_t;
using pl::transpose;

inline constexpr transpose both_ways[] = {transpose::no, transpose::yes};

inline std::vector<pl::cpu_level> levels_here() {
  std::vector<pl::cpu_level> levels;
  for (const pl::cpu_level level : {pl::cpu_level::baseline, pl::cpu_level::avx2, pl::cpu_level::avx512})
    if (pl::cpu_supports(level)) levels.push_back(level);
  return levels;
}

// A stored matrix: rows `ld` apart, of which the last `ld - columns` elements are nobody's; begins one
// element past a generous alignment.
template <class T> struct matrix {
  index_t rows, columns, ld;
  std::vector<T> storage;

  matrix(index_t r, index_t c, index_t padding = 3)
      : rows(r), columns(c), ld(c + padding), storage(static_cast<std::size_t>(r * ld + 1), T(-77.0f)) {}

  T* data() { return storage.data() + 1; }
  const T* data() const { return storage.data() + 1; }
  T& at(index_t i, index_t j) { return data()[i * ld + j]; }
  const T& at(index_t i, index_t j) const { return data()[i * ld + j]; }

  matrix& fill(float value) {
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j) at(i, j) = T(value);
    return *this;
  }
  matrix& randomize(std::uint32_t seed) {
    std::mt19937 engine(seed);
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j)
        at(i, j) = T(static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31f);
    return *this;
  }
  bool padding_untouched() const {
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = columns; j < ld; ++j)
        if (float(at(i, j)) != float(T(-77.0f))) return false;
    return float(storage.front()) == float(T(-77.0f));
  }
};

template <class T> matrix<T> operand(transpose op, index_t rows, index_t columns, std::uint32_t seed) {
  matrix<T> out = op == transpose::no ? matrix<T>(rows, columns) : matrix<T>(columns, rows);
  out.randomize(seed);
  return out;
}
template <class T> double element(const matrix<T>& x, transpose op, index_t i, index_t j) {
  return static_cast<double>(pl::widen(op == transpose::no ? x.at(i, j) : x.at(j, i)));
}

// The scratch that was promised, between canaries, filled with a pattern.
struct guarded_scratch {
  static constexpr std::size_t guard = 256;
  static constexpr std::uint32_t pattern = 0xa5c35a3c;
  std::size_t bytes;
  std::vector<std::uint32_t> words;

  explicit guarded_scratch(std::size_t n) : bytes(n), words((n + 2 * guard) / 4, pattern) {
    REQUIRE(n % 4 == 0);
  }
  void* data() { return words.data() + guard / 4; }
  bool canaries_alive() const {
    for (std::size_t i = 0; i < guard / 4; ++i)
      if (words[i] != pattern || words[words.size() - 1 - i] != pattern) return false;
    return true;
  }
  std::size_t untouched_bytes() const {
    std::size_t count = 0;
    for (std::size_t i = guard / 4; i < words.size() - guard / 4; ++i) count += words[i] == pattern ? 4 : 0;
    return count;
  }
};

template <class Gemm, class A, class B, class C>
void run(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, float alpha, const matrix<A>& a,
         const matrix<B>& b, float beta, matrix<C>& c, pl::cpu_level level) {
  guarded_scratch scratch(Gemm::scratch_bytes(op_a, op_b, m, n, k, pl::scalar_kind_of<A>,
                                              pl::scalar_kind_of<B>, pl::scalar_kind_of<C>));
  Gemm::run(op_a, op_b, m, n, k, alpha, a.data(), a.ld, b.data(), b.ld, beta, c.data(), c.ld, scratch.data(),
            level);
  CHECK(scratch.canaries_alive());
  if (alpha != 0.0f) CHECK(scratch.untouched_bytes() == 0); // the promise is tight
  CHECK(c.padding_untouched());
}

template <class T> double rounding_unit() {
  return std::is_same_v<T, float> ? 0.0 : std::is_same_v<T, pl::bfloat16> ? 0x1p-8 : 0x1p-11;
}

// Sums of random signs stay far below their bound: 16 roundings of the sum of magnitudes hold for any length
// here, and leaving out a single term exceeds them.
template <class Gemm, class A, class B, class C>
void check_product(transpose op_a, transpose op_b, index_t m, index_t n, index_t k, float alpha, float beta,
                   pl::cpu_level level) {
  const std::string text = std::string(op_a == transpose::no ? "n" : "t") +
                           (op_b == transpose::no ? "n " : "t ") + std::to_string(m) + " x " +
                           std::to_string(n) + " x " + std::to_string(k) + ", alpha " +
                           std::to_string(alpha) + ", beta " + std::to_string(beta) + ", " +
                           pl::cpu_level_name(level) + ", " + std::string(pl::scalar_name<A>()) + " " +
                           std::string(pl::scalar_name<B>()) + " " + std::string(pl::scalar_name<C>());
  INFO(text);
  const matrix<A> a = operand<A>(op_a, m, k, 1);
  const matrix<B> b = operand<B>(op_b, k, n, 2);
  matrix<C> c(m, n);
  c.randomize(3);
  const matrix<C> before = c;
  if (beta == 0.0f) c.fill(std::numeric_limits<float>::quiet_NaN());
  run<Gemm>(op_a, op_b, m, n, k, alpha, a, b, beta, c, level);

  double worst = 0.0; // in units of what is allowed
  std::vector<double> a_row(static_cast<std::size_t>(k)), sum(static_cast<std::size_t>(n)), size(sum.size());
  std::vector<double> b_wide(static_cast<std::size_t>(k * n));
  for (index_t p = 0; p < k; ++p)
    for (index_t j = 0; j < n; ++j) b_wide[static_cast<std::size_t>(p * n + j)] = element(b, op_b, p, j);
  for (index_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < sum.size(); ++j) {
      const double old = beta == 0.0f ? 0.0 : beta * double(pl::widen(before.at(i, static_cast<index_t>(j))));
      sum[j] = old;
      size[j] = std::abs(old);
    }
    for (index_t p = 0; p < k; ++p) {
      const double left = alpha * element(a, op_a, i, p);
      const double* right = b_wide.data() + p * n;
      for (std::size_t j = 0; j < sum.size(); ++j) {
        sum[j] += left * right[j];
        size[j] += std::abs(left * right[j]);
      }
    }
    for (std::size_t j = 0; j < sum.size(); ++j) {
      const double got = static_cast<double>(pl::widen(c.at(i, static_cast<index_t>(j))));
      const double allowed = 0x1p-20 * size[j] + rounding_unit<C>() * std::abs(sum[j]) + 0x1p-25;
      const double share = std::abs(got - sum[j]) / allowed;
      worst = share <= worst ? worst : share; // a NaN stays
    }
  }
  CHECK(worst <= 1.0);
}

template <class Gemm, class A, class B, class C> void check_types() {
  struct extents {
    index_t m, n, k;
  };
  const extents shapes[] = {{1, 1, 1},      {3, 33, 17},    {12, 32, 16},   {13, 31, 15},
                            {25, 65, 40},   {37, 40, 257},  {40, 12, 30},   {100, 7, 300},
                            {30, 513, 270}, {481, 34, 258}, {500, 11, 260}, {515, 514, 40}};
  for (const pl::cpu_level level : levels_here())
    for (const extents& s : shapes)
      for (const transpose op_a : both_ways)
        for (const transpose op_b : both_ways) {
          const bool odd = s.m % 2 != 0;
          check_product<Gemm, A, B, C>(op_a, op_b, s.m, s.n, s.k, odd ? 1.0f : -0.5f, odd ? 1.0f : 0.0f,
                                       level);
        }
}

template <class Gemm> void check_everything() {
  SUBCASE("every edge of the blocks, every transpose") {
    for (const pl::cpu_level level : levels_here())
      for (const transpose op_a : both_ways)
        for (const transpose op_b : both_ways) {
          for (const index_t m : {1, 2, 4, 5, 7, 9, 12, 13, 25})
            for (const index_t n : {1, 7, 8, 9, 12, 13, 16, 17, 32, 33, 65})
              for (const index_t k : {1, 3, 16, 21})
                check_product<Gemm, float, float, float>(op_a, op_b, m, n, k, 1, 0, level);
          for (const index_t m : {36, 37, 49})
            for (const index_t n : {64, 512, 545})
              for (const index_t k : {255, 256, 257})
                check_product<Gemm, float, float, float>(op_a, op_b, m, n, k, 1, 1, level);
        }
  }
  SUBCASE("long sums and large shapes") {
    const pl::cpu_level level = pl::detect_cpu_level();
    check_product<Gemm, float, float, float>(transpose::no, transpose::yes, 33, 35, 3000, 1, 1, level);
    check_product<Gemm, pl::bfloat16, pl::bfloat16, pl::bfloat16>(transpose::yes, transpose::no, 35, 33, 3000,
                                                                  1, 1, level);
    check_product<Gemm, pl::bfloat16, pl::bfloat16, pl::bfloat16>(transpose::no, transpose::no, 1000, 530,
                                                                  520, 1, 1, level);
  }
  SUBCASE("alpha and beta") {
    for (const pl::cpu_level level : levels_here())
      for (const float alpha : {0.0f, 1.0f, -0.375f})
        for (const float beta : {0.0f, 1.0f, 0.7f}) {
          check_product<Gemm, float, float, float>(transpose::no, transpose::yes, 14, 40, 260, alpha, beta,
                                                   level);
          check_product<Gemm, float, pl::half, pl::bfloat16>(transpose::yes, transpose::no, 14, 40, 260,
                                                             alpha, beta, level);
        }
  }
  SUBCASE("bf16 into bf16") { check_types<Gemm, pl::bfloat16, pl::bfloat16, pl::bfloat16>(); }
  SUBCASE("bf16 into float") { check_types<Gemm, pl::bfloat16, pl::bfloat16, float>(); }
  SUBCASE("half into half") { check_types<Gemm, pl::half, pl::half, pl::half>(); }
  SUBCASE("mixed") {
    check_types<Gemm, float, pl::bfloat16, float>();
    check_types<Gemm, pl::bfloat16, float, pl::half>();
  }
  SUBCASE("nothing to multiply") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const pl::cpu_level level : levels_here()) {
      matrix<float> a(5, 5), b(5, 5), c(5, 5), d(5, 5);
      a.fill(nan);
      b.fill(nan);
      c.fill(3.0f);
      run<Gemm>(transpose::no, transpose::no, 0, 5, 5, 1.0f, a, b, 0.0f, c, level);
      run<Gemm>(transpose::no, transpose::no, 5, 0, 5, 1.0f, a, b, 0.0f, c, level);
      CHECK(c.at(0, 0) == 3.0f);
      CHECK(c.at(4, 4) == 3.0f);
      run<Gemm>(transpose::no, transpose::no, 5, 5, 0, 1.0f, a, b, 0.5f, c, level);
      CHECK(c.at(4, 4) == 1.5f);
      run<Gemm>(transpose::no, transpose::no, 5, 5, 5, 0.0f, a, b, 2.0f, c,
                level); // alpha 0: a and b are not read
      CHECK(c.at(0, 0) == 3.0f);
      d.fill(nan);
      run<Gemm>(transpose::no, transpose::no, 5, 5, 0, 1.0f, a, b, 0.0f, d, level);
      CHECK(d.at(2, 3) == 0.0f);
      Gemm::run(transpose::no, transpose::no, 0, 0, 0, 1.0f, a.data(), 5, b.data(), 5, 0.0f, d.data(), 5,
                nullptr, level);
    }
  }
  SUBCASE("scratch is bounded and never grows as a shape shrinks") {
    const index_t sizes[] = {1, 2, 11, 12, 13, 16, 31, 33, 36, 37, 256, 257, 480, 481, 512, 513, 5000};
    using kind = pl::scalar_kind;
    for (const transpose op_a : both_ways)
      for (const transpose op_b : both_ways)
        for (const kind a : {kind::fp32, kind::bf16})
          for (const kind b : {kind::fp32, kind::bf16})
            for (const kind c : {kind::fp32, kind::bf16}) {
              const auto bytes = [&](index_t m, index_t n, index_t k) {
                return Gemm::scratch_bytes(op_a, op_b, m, n, k, a, b, c);
              };
              bool grows = true;
              for (std::size_t x = 0; x + 1 < std::size(sizes); ++x)
                for (const index_t y : sizes)
                  for (const index_t z : sizes)
                    grows = grows && bytes(sizes[x], y, z) <= bytes(sizes[x + 1], y, z) &&
                            bytes(y, sizes[x], z) <= bytes(y, sizes[x + 1], z) &&
                            bytes(y, z, sizes[x]) <= bytes(y, z, sizes[x + 1]);
              CHECK(grows);
              CHECK(bytes(index_t{1} << 40, index_t{1} << 40, index_t{1} << 40) <= std::size_t{3} << 20);
              CHECK(bytes(0, 5, 5) == 0);
              CHECK(bytes(5, 5, 0) == 0);
            }
  }
}

} // namespace gemm_cases
