// SPDX-License-Identifier: Apache-2.0
//
// The products behind the stand-in of cuBLAS: column-major, summed in double, rounded once to the type of C.
// Real libraries sum in fp32 and in orders of their own, so nothing here says how exact they are.
#pragma once

#include <cuda_stand_in/library.hpp>

#include <library_types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace cuda_stand_in {

inline std::size_t size_of(cudaDataType_t t) {
  switch (t) {
  case CUDA_R_16F:
  case CUDA_R_16BF:
    return 2;
  case CUDA_R_32F:
    return 4;
  default:
    return 0; // not one that is multiplied here
  }
}
inline double from_half(std::uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}
// The nearest multiple of the unit that a type has for numbers of that size; ties to even.
inline double rounded(double v, int mantissa_bits, int lowest_exponent) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int unit = std::max(std::ilogb(v), lowest_exponent) - mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
}
inline std::uint16_t to_half(double v) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(v) ? 0x8000 : 0);
  if (std::isnan(v)) return 0x7e00;
  const double r = std::fabs(rounded(v, 10, -14));
  if (r >= 65536.0) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (r < std::ldexp(1.0, -14)) return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(r, 24)));
  const int exponent = std::ilogb(r);
  return static_cast<std::uint16_t>(sign | (exponent + 15) << 10 |
                                    (static_cast<int>(std::ldexp(r, 10 - exponent)) - 1024));
}
inline std::uint16_t to_bfloat16(double v) {
  if (std::isnan(v)) return 0x7fc0;
  const auto f = static_cast<float>(rounded(v, 7, -126));
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}
inline double load(const char* p, cudaDataType_t t) {
  if (t == CUDA_R_32F) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  if (t == CUDA_R_16F) return from_half(h);
  const std::uint32_t bits = std::uint32_t{h} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline void store(char* p, cudaDataType_t t, double v) {
  if (t == CUDA_R_32F) {
    const auto f = static_cast<float>(v);
    std::memcpy(p, &f, 4);
    return;
  }
  const std::uint16_t h = t == CUDA_R_16F ? to_half(v) : to_bfloat16(v);
  std::memcpy(p, &h, 2);
}

// A matrix as BLAS sees it: rows x columns, a column every `ld` elements.
struct blas_matrix {
  char* p = nullptr;
  std::int64_t rows = 0, columns = 0, ld = 0;
  cudaDataType_t type = CUDA_R_32F;

  char* at(std::int64_t i, std::int64_t j) const {
    return p + static_cast<std::size_t>(i + j * ld) * size_of(type);
  }
  std::size_t reach() const { // bytes from the first element to the end of the last
    return rows == 0 || columns == 0 ? 0
                                     : static_cast<std::size_t>((columns - 1) * ld + rows) * size_of(type);
  }
};

// C = alpha op(A) op(B) + beta C. C is m x n, op(A) m x k; A and B are not read where alpha is 0, nor C where
// beta is.
inline void blas_product(bool turn_a, bool turn_b, std::int64_t k, double alpha, const blas_matrix& a,
                         const blas_matrix& b, double beta, const blas_matrix& c) {
  const std::int64_t m = c.rows, n = c.columns, terms = alpha == 0 ? 0 : k;
  const auto rows_of = [terms](const blas_matrix& x, bool along_columns, std::int64_t count,
                               const plain_array<double>& into) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t l = 0; l < terms; ++l)
        into[static_cast<std::size_t>(i * terms + l)] = load(along_columns ? x.at(i, l) : x.at(l, i), x.type);
  };
  const plain_array<double> left(static_cast<std::size_t>(m * terms)),
      right(static_cast<std::size_t>(n * terms));
  rows_of(a, !turn_a, m, left);
  rows_of(b, turn_b, n, right);
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < m; ++i) {
      const double* const x = left.data() + i * terms;
      const double* const y = right.data() + j * terms;
      double sum = 0;
      for (std::int64_t l = 0; l < terms; ++l) sum += x[l] * y[l];
      char* const to = c.at(i, j);
      double v = alpha * sum;
      if (beta != 0) v += beta * load(to, c.type);
      store(to, c.type, v);
    }
}

} // namespace cuda_stand_in
