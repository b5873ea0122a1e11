// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm against float64: values, gradients added to what is there, rows off every vector length, rows of
// zeros.

#include "kernels/norm.hpp"
#include "reference/layers.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

using plateau::bfloat16, plateau::index_t; // CUDA has a half of its own
using namespace support;

TEST_CASE_TEMPLATE("RMSNorm and its backward agree with float64", T, float, bfloat16, plateau::half) {
  for (const auto level : cpu_levels())
    for (const index_t hidden : {1, 2, 3, 31, 32, 33, 100, 257, 1024})
      for (const double scale : {1.0, 1e-3}) {
        const std::string name = plateau::cpu_level_name(level);
        CAPTURE(name);
        CAPTURE(hidden);
        CAPTURE(scale);
        const index_t n = 3;
        const auto seed = static_cast<std::uint64_t>(hidden);
        const auto x = random_values<T>(n * hidden, seed, scale), dy = random_values<T>(n * hidden, seed + 1);
        const auto residual = random_values<T>(n * hidden, seed + 2);
        const auto gain = rounded<T>(reference::normal_source(seed + 3)(hidden, 0.1, 1.0));
        const float epsilon = 1e-5f;
        // In float there is no wider type to compute in: several roundings instead of one.
        const double slack = std::is_same_v<T, float> ? 3 : 1;

        const matrix<T> from(n, hidden, x), upstream(n, hidden, dy);
        matrix<T> y(n, hidden);
        run_rows(level, n, moe::rms_norm{epsilon}, from.in(), all(gain), y.out());
        check_accurate(y.values(), reference::rms_norm(widened(x), widened(gain), n, hidden, epsilon), slack);
        CHECK(y.spare_untouched());

        matrix<T> dx(n, hidden, residual);
        matrix<float> terms(n, hidden);
        run_rows(level, n, moe::rms_norm_backward{epsilon}, from.in(), all(gain), upstream.in(), dx.out(),
                 terms.out());
        const auto expected =
            reference::rms_norm_backward(widened(dy), widened(x), widened(gain), n, hidden, epsilon);
        check_accurate(dx.values(), reference::sum_of(widened(residual), expected.dx), slack);
        CHECK(dx.spare_untouched());
        CHECK(terms.spare_untouched());
        reference::vec sums = reference::zeros(hidden);
        for (index_t r = 0; r < n; ++r)
          for (index_t i = 0; i < hidden; ++i) sums[i] += terms.at(r, i);
        check_accurate(rounded<float>(sums), expected.dgain, 3);
      }
}

TEST_CASE("a row of zeros is normalised to zeros, and its gradient is that of x / sqrt(epsilon)") {
  const index_t hidden = 37;
  const std::vector<float> zero(hidden, 0.0f), gain(hidden, 2.0f), dy = random_values<float>(hidden, 5);
  for (const auto level : cpu_levels()) {
    const matrix<float> x(1, hidden, zero), upstream(1, hidden, dy);
    matrix<float> y(1, hidden), dx(1, hidden, zero), terms(1, hidden);
    run_rows(level, 1, moe::rms_norm{1e-4f}, x.in(), all(gain), y.out());
    CHECK(same_bits(y.values(), zero));
    run_rows(level, 1, moe::rms_norm_backward{1e-4f}, x.in(), all(gain), upstream.in(), dx.out(),
             terms.out());
    reference::vec expected = widened(dy);
    for (double& d : expected) d *= 2.0 / std::sqrt(static_cast<double>(1e-4f));
    check_accurate(dx.values(), expected);
  }
}
