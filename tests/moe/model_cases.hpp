// SPDX-License-Identifier: Apache-2.0
//
// Cases for tests of the whole model (reference_cases.hpp), and when two steps count as equal.
#pragma once

#include "model_on_ranks.hpp"
#include "reference_cases.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace test {

inline void check_step(const step_result& actual, double loss, const reference::tensors& gradients,
                       double loss_bound, double gradient_bound) {
  CHECK(std::fabs(actual.loss - loss) <= loss_bound * std::fabs(loss));
  CHECK(worst_gradient(actual.gradients, gradients) <= gradient_bound);
}

inline bool same_bits(const step_result& a, const step_result& b) {
  if (a.loss != b.loss || a.gradients.size() != b.gradients.size()) return false;
  return std::equal(
      a.gradients.begin(), a.gradients.end(), b.gradients.begin(),
      [](const auto& x, const auto& y) { return x.first == y.first && x.second.data == y.second.data; });
}

} // namespace test
