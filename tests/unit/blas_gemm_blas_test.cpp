// SPDX-License-Identifier: Apache-2.0
//
// The GEMM through the system's BLAS: what every policy must do, and what only it has to refuse.
#include <support/gemm_cases.hpp>

#include <plateau/blas/blas_gemm.hpp>

extern "C" void openblas_set_num_threads(int);

TEST_CASE("blas_gemm multiplies") {
  openblas_set_num_threads(1); // the program's decision, never a header's
  gemm_cases::check_everything<plateau::blas_gemm>();
}

TEST_CASE("float operands need no scratch") {
  using kind = plateau::scalar_kind;
  using plateau::transpose;
  CHECK(plateau::blas_gemm::scratch_bytes(transpose::no, transpose::no, 5000, 5000, 5000, kind::fp32,
                                          kind::fp32, kind::fp32) == 0);
  CHECK(plateau::blas_gemm::scratch_bytes(transpose::no, transpose::no, 5000, 5000, 5000, kind::fp32,
                                          kind::bf16, kind::fp32) == 512 * 512 * 4);
}

TEST_CASE("a leading dimension beyond the integers of the BLAS is an error that names the matrix") {
  if (sizeof(blasint) == 8) return;
  const float a[2] = {2.0f, 0.0f}, b[2] = {3.0f, 0.0f};
  float c[1] = {0.0f};
  const auto multiply = [&](plateau::index_t lda, plateau::index_t ldb, plateau::index_t ldc) {
    plateau::blas_gemm::run(plateau::transpose::no, plateau::transpose::no, 1, 1, 1, 1.0f, a, lda, b, ldb,
                            0.0f, c, ldc, nullptr, plateau::cpu_level::baseline);
  };
  const plateau::index_t wide = plateau::index_t{1} << 31;
  CHECK_THROWS_WITH_AS(multiply(wide, 1, 1), doctest::Contains("a has rows 2147483648 elements apart"),
                       plateau::config_error);
  CHECK_THROWS_WITH_AS(multiply(1, wide, 1), doctest::Contains("b has rows"), plateau::config_error);
  CHECK_THROWS_WITH_AS(multiply(1, 1, wide), doctest::Contains("c has rows"), plateau::config_error);
  multiply(wide - 1, 1, 1);
  CHECK(c[0] == 6.0f);
}
