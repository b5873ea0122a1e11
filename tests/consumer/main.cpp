// SPDX-License-Identifier: Apache-2.0
//
// The smallest program that uses Plateau: two translation units include it, and BLAS is called where it was
// found.
#if __has_include(<plateau/plateau.hpp>)
#include <plateau/plateau.hpp>
#else
#include <plateau/config.hpp>
#endif
#if CONSUMER_HAS_BLAS
#include <cblas.h>
#endif

#include <cstdio>

plateau::index_t rows_of_the_other_file();

int main() {
  const plateau::index_t rows = rows_of_the_other_file();
  float sum = 6;
#if CONSUMER_HAS_BLAS
  const float x[3] = {1, 2, 3};
  const float ones[3] = {1, 1, 1};
  sum = cblas_sdot(3, x, 1, ones, 1);
#endif
  std::printf("plateau %d.%d.%d, %lld rows, sum %g\n", PLATEAU_VERSION_MAJOR, PLATEAU_VERSION_MINOR,
              PLATEAU_VERSION_PATCH, static_cast<long long>(rows), static_cast<double>(sum));
  return rows == 42 && sum == 6 ? 0 : 1;
}
