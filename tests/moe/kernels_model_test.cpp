// SPDX-License-Identifier: Apache-2.0
//
// Random weights: the moments of a normal distribution, the same bits however a tensor is cut, others for
// another seed. And the balance loss against float64.

#include "kernels/model.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using plateau::index_t;
using namespace support;

namespace {

std::vector<float> weights_of(plateau::cpu_level level, index_t n, moe::random_weights kernel) {
  std::vector<float> out(static_cast<std::size_t>(n), -99.0F);
  run_elements(level, n, kernel, all(out));
  return out;
}

} // namespace

TEST_CASE("random weights have the moments of a normal distribution") {
  const index_t n = 1 << 20;
  const double mean = 0.25, deviation = 0.02;
  const auto w = weights_of(plateau::cpu_level::baseline, n,
                            {7, static_cast<float>(mean), static_cast<float>(deviation)});
  double moment[5] = {}, neighbours = 0, before = 0;
  for (const float x : w) {
    const double z = (static_cast<double>(x) - mean) / deviation;
    CHECK_UNARY(std::fabs(z) < 3.4642); // four uniform numbers: nothing beyond 2 sqrt(3)
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(z, k) / static_cast<double>(n);
    neighbours += z * before / static_cast<double>(n);
    before = z;
  }
  // Five standard errors each: of a moment of order k, sqrt((E z^2k - (E z^k)^2) / n).
  const double error = 1 / std::sqrt(static_cast<double>(n));
  CHECK(std::fabs(moment[1]) < 5 * error);
  CHECK(std::fabs(moment[2] - 1) < 5 * 1.31 * error);
  CHECK(std::fabs(moment[3]) < 5 * 3.4 * error);
  CHECK(std::fabs(moment[4] - 2.7) < 5 * 8 * error); // 3 - 6/5 / 4 for the sum of four uniform numbers
  CHECK(std::fabs(neighbours) < 5 * error);
}

TEST_CASE("a weight depends on the seed and its index alone") {
  const moe::random_weights kernel{12345, 0, 1};
  const auto whole = weights_of(plateau::cpu_level::baseline, 1000, kernel);
  for (const auto level : cpu_levels()) {
    const std::string name = plateau::cpu_level_name(level);
    CAPTURE(name);
    for (const index_t n : {0, 1, 31, 33, 500, 1000}) {
      const auto part = weights_of(level, n, kernel);
      CHECK(same_bits(part, {whole.begin(), whole.begin() + n}));
    }
    std::vector<float> cut(1000); // two launches, as two threads or blocks would share them
    run_part(level, index_t{0}, index_t{417}, kernel, all(cut));
    run_part(level, index_t{417}, index_t{1000}, kernel, all(cut));
    CHECK(same_bits(cut, whole));
  }
  const auto other = weights_of(plateau::cpu_level::baseline, 1000, {12346, 0, 1});
  int same = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) same += whole[i] == other[i] ? 1 : 0;
  CHECK(same < 10);
  auto sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  CHECK(std::unique(sorted.begin(), sorted.end()) - sorted.begin() > 990);
  CHECK(weights_of(plateau::cpu_level::baseline, 3, {1, 1, 0}) == std::vector<float>{1, 1, 1});
}

TEST_CASE("losses are summed in double") {
  for (const auto level : cpu_levels())
    for (const index_t n : {1, 2, 31, 33, 1000}) {
      const auto losses = random_values<float>(n, 9, 1e25);
      std::vector<double> sum(1);
      double values = 0, sizes = 0;
      for (const double x : widened(losses)) values += x, sizes += std::fabs(x);
      run_rows(level, 1, moe::sum_values{}, all(losses), all(sum));
      CHECK(std::fabs(sum[0] - values) <= 1e-14 * sizes);
    }
}

TEST_CASE("the balance loss is added in double") {
  for (const auto level : cpu_levels())
    for (const index_t experts : {1, 8, 31, 32, 33, 300}) {
      CAPTURE(experts);
      auto probability = random_values<float>(experts, 3), load = random_values<float>(experts, 4, 1000);
      for (float& p : probability) p = std::fabs(p);
      for (float& l : load) l = std::floor(std::fabs(l));
      double expected = 0;
      for (std::size_t e = 0; e < load.size(); ++e)
        expected += static_cast<double>(probability[e]) * static_cast<double>(load[e]);
      std::vector<double> value{0.5};
      run_rows(level, 1, moe::add_balance{0.125}, all(std::as_const(probability)), all(std::as_const(load)),
               all(value));
      CHECK(value[0] == doctest::Approx(0.5 + 0.125 * expected).epsilon(1e-14));
      run_rows(level, 1, moe::add_balance{0}, all(std::as_const(probability)), all(std::as_const(load)),
               all(value));
      CHECK(value[0] == doctest::Approx(0.5 + 0.125 * expected).epsilon(1e-14));
    }
}
