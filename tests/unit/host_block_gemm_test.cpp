// SPDX-License-Identifier: Apache-2.0
//
// The built-in GEMM: what every policy must do, and its own promise that an element's bits depend on its row,
// its column and nothing else.
#include <support/gemm_cases.hpp>

#include <plateau/host/block_gemm.hpp>

namespace {

using namespace gemm_cases;
using gemm = pl::block_gemm;

template <class T> bool same_bits(const T& x, const T& y) { return std::memcmp(&x, &y, sizeof(T)) == 0; }

// Rows [first, first + count) of op(A), as a matrix of their own.
template <class T> matrix<T> rows_of(const matrix<T>& x, transpose op, index_t first, index_t count) {
  const index_t depth = op == transpose::no ? x.columns : x.rows;
  matrix<T> out = op == transpose::no ? matrix<T>(count, depth) : matrix<T>(depth, count);
  for (index_t i = 0; i < count; ++i)
    for (index_t p = 0; p < depth; ++p)
      (op == transpose::no ? out.at(i, p) : out.at(p, i)) =
          op == transpose::no ? x.at(first + i, p) : x.at(p, first + i);
  return out;
}

template <class A, class B, class C> void check_rows_alone(index_t n, index_t k) {
  for (const pl::cpu_level level : levels_here())
    for (const transpose op_a : both_ways)
      for (const transpose op_b : both_ways) {
        const index_t m = 61;
        INFO(n << " columns, " << k << " terms, " << std::string(pl::cpu_level_name(level)));
        const matrix<A> a = operand<A>(op_a, m, k, 4);
        const matrix<B> b = operand<B>(op_b, k, n, 5);
        matrix<C> before(m, n), together(m, n);
        before.randomize(6);
        together = before;
        run<gemm>(op_a, op_b, m, n, k, 0.3f, a, b, 0.7f, together, level);
        bool same = true;
        for (const index_t count : {1, 3, 12, 13, 37})
          for (index_t first = 0; first + count <= m; first += 12) {
            matrix<C> alone = rows_of(before, transpose::no, first, count);
            run<gemm>(op_a, op_b, count, n, k, 0.3f, rows_of(a, op_a, first, count), b, 0.7f, alone, level);
            for (index_t i = 0; i < count; ++i)
              for (index_t j = 0; j < n; ++j)
                same = same && same_bits(alone.at(i, j), together.at(first + i, j));
          }
        CHECK(same);
      }
}

} // namespace

TEST_CASE("block_gemm multiplies") { check_everything<gemm>(); }

TEST_CASE("a row has the same bits alone and among any others") {
  static_assert(gemm::row_invariant);
  for (const index_t n : {1, 9, 12, 13, 40, 65})
    for (const index_t k : {5, 64, 300}) check_rows_alone<float, float, float>(n, k);
  check_rows_alone<pl::bfloat16, pl::bfloat16, pl::bfloat16>(33, 530);
  check_rows_alone<pl::half, pl::half, float>(5, 70);
}

TEST_CASE("an element has the same bits however many columns there are and however operands are stored") {
  const index_t m = 40, n = 545, k = 530;
  for (const pl::cpu_level level : levels_here()) {
    INFO(std::string(pl::cpu_level_name(level)));
    matrix<float> a(m, k), b(k, n), a_turned(k, m), b_turned(n, k), c(m, n), narrow(m, 7);
    a.randomize(7);
    b.randomize(8);
    for (index_t i = 0; i < m; ++i)
      for (index_t p = 0; p < k; ++p) a_turned.at(p, i) = a.at(i, p);
    for (index_t p = 0; p < k; ++p)
      for (index_t j = 0; j < n; ++j) b_turned.at(j, p) = b.at(p, j);
    run<gemm>(transpose::no, transpose::no, m, n, k, 1.0f, a, b, 0.0f, c, level);
    bool same = true;
    for (const transpose op_a : both_ways)
      for (const transpose op_b : both_ways) {
        matrix<float> other(m, n);
        run<gemm>(op_a, op_b, m, n, k, 1.0f, op_a == transpose::no ? a : a_turned,
                  op_b == transpose::no ? b : b_turned, 0.0f, other, level);
        for (index_t i = 0; i < m; ++i)
          for (index_t j = 0; j < n; ++j) same = same && same_bits(other.at(i, j), c.at(i, j));
      }
    CHECK(same);
    for (const index_t first :
         {0, 100, 538}) { // seven columns take the path on which rows and columns are exchanged
      matrix<float> part(k, 7);
      for (index_t p = 0; p < k; ++p)
        for (index_t j = 0; j < 7; ++j) part.at(p, j) = b.at(p, first + j);
      run<gemm>(transpose::no, transpose::no, m, 7, k, 1.0f, a, part, 0.0f, narrow, level);
      for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < 7; ++j) same = same && same_bits(narrow.at(i, j), c.at(i, first + j));
    }
    CHECK(same);
  }
}

TEST_CASE("narrow operands are their float values, and a narrow C is the float C rounded once") {
  const index_t m = 50, n = 70, k = 1000;
  for (const pl::cpu_level level : levels_here()) {
    INFO(std::string(pl::cpu_level_name(level)));
    matrix<pl::bfloat16> a(m, k), b(n, k), c(m, n);
    a.randomize(9);
    b.randomize(10);
    c.randomize(11);
    matrix<float> a_wide(m, k), b_wide(n, k), c_wide(m, n), c_float(m, n);
    for (index_t i = 0; i < m; ++i)
      for (index_t p = 0; p < k; ++p) a_wide.at(i, p) = float(a.at(i, p));
    for (index_t j = 0; j < n; ++j)
      for (index_t p = 0; p < k; ++p) b_wide.at(j, p) = float(b.at(j, p));
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j) c_float.at(i, j) = c_wide.at(i, j) = float(c.at(i, j));
    run<gemm>(transpose::no, transpose::yes, m, n, k, 0.3f, a_wide, b_wide, 0.7f, c_wide, level);
    run<gemm>(transpose::no, transpose::yes, m, n, k, 0.3f, a, b, 0.7f, c_float, level);
    run<gemm>(transpose::no, transpose::yes, m, n, k, 0.3f, a, b, 0.7f, c, level);
    bool same = true, rounded = true;
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j) {
        same = same && same_bits(c_float.at(i, j), c_wide.at(i, j));
        rounded = rounded && same_bits(c.at(i, j), pl::bfloat16(c_wide.at(i, j)));
      }
    CHECK(same);
    CHECK(rounded);
  }
}

TEST_CASE("levels with fused multiply-add give the same bits") {
  if (!pl::cpu_supports(pl::cpu_level::avx512)) return;
  const index_t m = 30, n = 50, k = 600;
  const matrix<float> a = operand<float>(transpose::no, m, k, 12),
                      b = operand<float>(transpose::no, k, n, 13);
  matrix<float> c(m, n), d(m, n);
  d.fill(0.25f);
  c = d;
  run<gemm>(transpose::no, transpose::no, m, n, k, 0.3f, a, b, 0.7f, c, pl::cpu_level::avx2);
  run<gemm>(transpose::no, transpose::no, m, n, k, 0.3f, a, b, 0.7f, d, pl::cpu_level::avx512);
  bool same = true;
  for (index_t i = 0; i < m; ++i)
    for (index_t j = 0; j < n; ++j) same = same && same_bits(c.at(i, j), d.at(i, j));
  CHECK(same);
}
