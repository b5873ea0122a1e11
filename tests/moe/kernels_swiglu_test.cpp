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
