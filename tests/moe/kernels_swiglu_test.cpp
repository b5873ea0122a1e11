// SPDX-License-Identifier: Apache-2.0
//
// The gated activation against float64, both gradients in place, and gates of any size.

#include "kernels/swiglu.hpp"
#include "reference/tensor.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <string>

using plateau::bfloat16, plateau::index_t; // CUDA has a half of its own
using namespace support;

TEST_CASE_TEMPLATE("SwiGLU and its backward agree with float64", T, float, bfloat16, plateau::half) {
  for (const auto level : cpu_levels())
    for (const index_t n : {0, 1, 2, 31, 32, 33, 100, 1000})
      for (const double scale : {0.01, 1.0, 10.0}) {
        const std::string name = plateau::cpu_level_name(level);
        CAPTURE(name);
        CAPTURE(n);
        CAPTURE(scale);
        auto gate = random_values<T>(n, 1, scale), up = random_values<T>(n, 2);
        const auto dhidden = random_values<T>(n, 3);
        std::vector<T> hidden(static_cast<std::size_t>(n)), in_place = gate;
        run_elements(level, n, moe::swiglu{}, all(std::as_const(gate)), all(std::as_const(up)), all(hidden));
        run_part(level, 0, n, moe::swiglu{}, all(std::as_const(in_place)), all(std::as_const(up)),
                 all(in_place));
        CHECK(same_bits(in_place, hidden));

        reference::vec expected, dgate, dup;
        for (index_t i = 0; i < n; ++i) {
          const double a = widened(gate)[i], b = widened(up)[i], d = widened(dhidden)[i];
          const double s = 1 / (1 + std::exp(-a));
          expected.push_back(a * s * b);
          dgate.push_back(d * b * s * (1 + a * (1 - s)));
          dup.push_back(d * a * s);
        }
        const double slack = std::is_same_v<T, float> ? 4 : 1;
        check_accurate(hidden, expected, slack);
        run_elements(level, n, moe::swiglu_backward{}, all(gate), all(up), all(dhidden));
        check_accurate(gate, dgate, 2 * slack); // 1 + a (1 - sigmoid(a)), where the sigmoid is nearly 1
        check_accurate(up, dup, slack);
      }
}

TEST_CASE("a closed gate passes nothing and an open one everything") {
  const std::vector<float> gate{-1e4f, -200.0f, -100.0f, 0.0f, 100.0f, 1e4f, 3e38f}, up(7, 0.5f), d(7, 2.0f);
  for (const auto level : cpu_levels()) {
    std::vector<float> hidden(7), dgate = gate, dup = up;
    run_elements(level, 7, moe::swiglu{}, all(gate), all(up), all(hidden));
    run_elements(level, 7, moe::swiglu_backward{}, all(dgate), all(dup), all(d));
    for (int i = 0; i < 3; ++i) {
      CHECK(std::fabs(hidden[i]) < 1e-37f);
      CHECK(std::fabs(dgate[i]) < 1e-37f);
      CHECK(std::fabs(dup[i]) < 1e-37f);
    }
    CHECK(hidden[3] == 0.0f);
    CHECK(dgate[3] == 0.5f); // sigmoid(0) * up * d
    for (int i = 4; i < 6; ++i) {
      CHECK(hidden[i] == gate[i] * 0.5f);
      CHECK(dgate[i] == 1.0f);
      CHECK(dup[i] == gate[i] * 2.0f);
    }
    CHECK(hidden[6] == 1.5e38f);
    CHECK(dgate[6] == 1.0f);
  }
}

TEST_CASE_TEMPLATE("the backward of rows that gates weigh agrees with float64", T, float, bfloat16,
                   plateau::half) {
  for (const auto level : cpu_levels())
    for (const index_t n : {1, 2, 31, 33, 100, 129}) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(n);
      const index_t rows = 5;
      matrix<T> gate(rows, n, random_values<T>(rows * n, 1)), up(rows, n, random_values<T>(rows * n, 2)),
          hidden(rows, n, random_values<T>(rows * n, 3));
      const auto a = widened(gate.values()), b = widened(up.values()), d = widened(hidden.values());
      const std::vector<float> weights{0.5f, 1.0f, 0.0f, -0.25f, 0.3f};
      std::vector<float> dweights(5, 99.0f);
      run_rows(level, rows, moe::weighted_swiglu_backward{}, all(weights), gate.out(), up.out(), hidden.out(),
               all(dweights));

      reference::vec of_gate, of_up, scaled, of_weight;
      for (index_t r = 0; r < rows; ++r) {
        const double g = static_cast<double>(weights[static_cast<std::size_t>(r)]);
        double dot = 0;
        for (index_t i = r * n; i < (r + 1) * n; ++i) {
          const double s = 1 / (1 + std::exp(-a[i])), h = a[i] * s * b[i];
          dot += d[i] * h;
          of_gate.push_back(g * d[i] * b[i] * s * (1 + a[i] * (1 - s)));
          of_up.push_back(g * d[i] * a[i] * s);
          scaled.push_back(g * h);
        }
        of_weight.push_back(dot);
      }
      const double slack = std::is_same_v<T, float> ? 4 : 1;
      check_accurate(gate.values(), of_gate, 2 * slack);
      check_accurate(up.values(), of_up, slack);
      check_accurate(hidden.values(), scaled, slack);
      check_accurate(dweights, of_weight, 8); // a sum of n terms
      CHECK(gate.spare_untouched());
      CHECK(up.spare_untouched());
      CHECK(hidden.spare_untouched());
    }
}

TEST_CASE_TEMPLATE("over the gate's memory the activation has the same bits", T, float, bfloat16,
                   plateau::half) {
  for (const auto level : cpu_levels()) {
    auto gate = random_values<T>(1000, 1);
    const auto up = random_values<T>(1000, 2), before = gate;
    std::vector<T> hidden(1000);
    run_elements(level, 1000, moe::swiglu{}, all(before), all(up), all(hidden));
    run_elements(level, 1000, moe::swiglu_in_place{}, all(gate), all(up));
    CHECK(same_bits(gate, hidden));
  }
}
