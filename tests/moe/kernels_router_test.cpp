// SPDX-License-Identifier: Apache-2.0
//
// The router against float64: probabilities, choice and gates; ties; logits that are not finite; given
// experts; and the gradient with and without a balance loss.

#include "kernels/router.hpp"
#include "reference/router.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

using plateau::bfloat16, plateau::index_t;
using namespace support;

namespace {

struct routed {
  matrix<float> probabilities, gates;
  matrix<std::int32_t> ids;
};

routed run_route(plateau::cpu_level level, const std::vector<float>& logits, index_t experts, index_t k) {
  const index_t n = static_cast<index_t>(logits.size()) / experts;
  const matrix<float> in(n, experts, logits);
  routed r{matrix<float>(n, experts), matrix<float>(n, k), matrix<std::int32_t>(n, k)};
  run_rows(level, n, moe::route{static_cast<int>(k)}, in.in(), r.probabilities.out(), r.ids.out(),
           r.gates.out());
  CHECK(r.probabilities.spare_untouched());
  CHECK(r.gates.spare_untouched());
  CHECK(r.ids.spare_untouched());
  return r;
}

std::vector<index_t> as_index(const std::vector<std::int32_t>& ids) { return {ids.begin(), ids.end()}; }

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

} // namespace

TEST_CASE_TEMPLATE("choice, gates and gradients agree with float64", T, float, bfloat16) {
  struct size {
    index_t experts, k;
  };
  const index_t n = 5;
  for (const auto level : cpu_levels())
    for (const size& s : {size{1, 1}, size{2, 1}, size{2, 2}, size{8, 2}, size{31, 4}, size{32, 3},
                          size{33, 16}, size{128, 8}, size{300, 16}}) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(s.experts);
      CAPTURE(s.k);
      const auto logits = random_values<float>(n * s.experts, static_cast<std::uint64_t>(s.experts), 2);
      const reference::routing expected = reference::route(widened(logits), n, s.experts, s.k);
      routed found = run_route(level, logits, s.experts, s.k);
      CHECK(as_index(found.ids.values()) == expected.expert);
      check_accurate(found.probabilities.values(), expected.probability, 3);
      check_accurate(found.gates.values(), expected.gate, 3);

      // The same experts given from outside give the same bits.
      const matrix<float> in(n, s.experts, logits);
      matrix<float> probabilities(n, s.experts), gates(n, s.k);
      run_rows(level, n, moe::gates_of_forced{}, in.in(), probabilities.out(), std::as_const(found.ids).in(),
               gates.out());
      CHECK(same_bits(gates.values(), found.gates.values()));
      CHECK(same_bits(probabilities.values(), found.probabilities.values()));

      const auto dgates = random_values<float>(n * s.k, 11), load = random_values<float>(s.experts, 12);
      const matrix<float> upstream(n, s.k, dgates);
      for (const float balance : {0.0f, 0.7f}) {
        CAPTURE(balance);
        reference::vec dprobability;
        for (index_t i = 0; i < n * s.experts; ++i)
          dprobability.push_back(static_cast<double>(balance) * static_cast<double>(load[i % s.experts]));
        matrix<T> dlogits(n, s.experts);
        run_rows(level, n, moe::route_backward{balance}, in.in(), std::as_const(found.ids).in(),
                 std::as_const(found.gates).in(), upstream.in(),
                 balance == 0.0f ? plateau::view<const float>{} : all(std::as_const(load)), dlogits.out());
        CHECK(dlogits.spare_untouched());
        const auto exact = reference::route_backward(expected, widened(dgates), dprobability);
        if (s.k == 1 && balance == 0.0f) // one gate is 1, whatever the logits: exactly no gradient
          for (const T d : dlogits.values()) CHECK(static_cast<float>(d) == 0.0f);
        else if (s.experts > 1)
          check_accurate(dlogits.values(), exact, std::is_same_v<T, float> ? 6 : 1);
      }
    }
}

TEST_CASE_TEMPLATE("given experts that repeat within a row agree with float64", T, float, bfloat16) {
  struct size {
    index_t experts, k, distinct;
  };
  const index_t n = 6;
  for (const auto level : cpu_levels())
    for (const size& s : {size{1, 2, 1}, size{2, 2, 1}, size{8, 2, 1}, size{31, 4, 3}, size{128, 8, 4},
                          size{300, 16, 5}, size{300, 16, 1}}) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(s.experts);
      CAPTURE(s.k);
      const auto logits = random_values<float>(n * s.experts, static_cast<std::uint64_t>(s.experts), 2);
      std::vector<index_t> chosen;
      for (index_t row = 0; row < n; ++row)
        for (index_t j = 0; j < s.k; ++j) chosen.push_back((row * 17 + j * 7 % s.distinct * 5) % s.experts);
      const reference::routing expected = reference::route_to(widened(logits), chosen, n, s.experts, s.k);
      const matrix<float> in(n, s.experts, logits);
      const matrix<std::int32_t> ids(n, s.k, {chosen.begin(), chosen.end()});
      matrix<float> probabilities(n, s.experts), gates(n, s.k);
      run_rows(level, n, moe::gates_of_forced{}, in.in(), probabilities.out(), ids.in(), gates.out());
      check_accurate(probabilities.values(), expected.probability, 3);
      check_accurate(gates.values(), expected.gate, 3);

      const auto dgates = random_values<float>(n * s.k, 11), load = random_values<float>(s.experts, 12);
      const matrix<float> upstream(n, s.k, dgates);
      for (const float balance : {0.0f, 0.7f}) {
        CAPTURE(balance);
        reference::vec dprobability;
        for (index_t i = 0; i < n * s.experts; ++i)
          dprobability.push_back(static_cast<double>(balance) * static_cast<double>(load[i % s.experts]));
        matrix<T> dlogits(n, s.experts);
        run_rows(level, n, moe::route_backward{balance}, in.in(), ids.in(), std::as_const(gates).in(),
                 upstream.in(), balance == 0.0f ? plateau::view<const float>{} : all(std::as_const(load)),
                 dlogits.out());
        CHECK(dlogits.spare_untouched());
        const auto exact = reference::route_backward(expected, widened(dgates), dprobability);
        if (s.distinct == 1) {
          // All slots the same expert: nothing that its logit does changes a gate, and what is left of their
          // gradients is the rounding of a sum that is zero.
          const double digits = std::is_same_v<T, float> ? 0x1p-20 : 0x1p-8;
          const auto found = dlogits.values();
          for (std::size_t i = 0; i < found.size(); ++i)
            CHECK(std::fabs(static_cast<double>(static_cast<float>(found[i])) - exact[i]) <=
                  2e-7 + digits * std::fabs(exact[i]));
        } else {
          check_accurate(dlogits.values(), exact, std::is_same_v<T, float> ? 6 : 1);
        }
      }
    }
}

TEST_CASE("ties go to the lower id") {
  for (const auto level : cpu_levels()) {
    CHECK(run_route(level, std::vector<float>(40, 0.25f), 40, 4).ids.values() ==
          std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK(run_route(level, {1, 3, 2, 3, 2, 3, 0}, 7, 5).ids.values() ==
          std::vector<std::int32_t>{1, 3, 5, 2, 4});
    CHECK(run_route(level, {0.0f, -0.0f, 0.0f, -0.0f}, 4, 4).ids.values() ==
          std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK(run_route(level, {-0.0f, 0.0f, -1.0f}, 3, 2).ids.values() == std::vector<std::int32_t>{0, 1});
    // Logits that differ too little for their probabilities to differ are still ordered.
    CHECK(run_route(level, {-20.0f, 0.0f, -19.999998f, -1.0f}, 4, 4).ids.values() ==
          std::vector<std::int32_t>{1, 3, 2, 0});
  }
}

TEST_CASE("whatever the logits, ids are distinct and in range, and a NaN shows in the gates") {
  const std::vector<std::vector<float>> rows = {
      {nan_value, nan_value, nan_value, nan_value, nan_value},
      {nan_value, 1, 2, nan_value, 0},
      {-infinity, 1, -infinity, 2, 0},
      {-infinity, -infinity, -infinity, -infinity, -infinity},
      {infinity, 0, infinity, nan_value, -nan_value},
      {plateau::lowest<float>(), -infinity, nan_value, 0, plateau::lowest<float>()}};
  for (const auto level : cpu_levels())
    for (const auto& row : rows)
      for (const index_t k : {1, 3, 5}) {
        routed r = run_route(level, row, 5, k);
        const auto ids = r.ids.values();
        const std::set<std::int32_t> distinct(ids.begin(), ids.end());
        CHECK(distinct.size() == static_cast<std::size_t>(k));
        CHECK(*distinct.begin() >= 0);
        CHECK(*distinct.rbegin() < 5);
        bool any_nan = false;
        for (const float x : row) any_nan = any_nan || plateau::is_nan(x);
        if (any_nan)
          for (const float g : r.gates.values()) CHECK(plateau::is_nan(g));
      }
  // A NaN ranks below everything else, and -infinity is worth nothing.
  CHECK(run_route(plateau::cpu_level::baseline, {nan_value, -infinity, 2, nan_value, 3}, 5, 3).ids.values() ==
        std::vector<std::int32_t>{4, 2, 1});
  CHECK(run_route(plateau::cpu_level::baseline, {-infinity, 1, -infinity}, 3, 2).gates.values() ==
        std::vector<float>{1, 0});
}

TEST_CASE("a given expert that does not exist weighs nothing") {
  const matrix<float> logits(2, 3, {1, 2, 3, 1, 2, 3});
  const matrix<std::int32_t> ids(2, 2, {1, 3, -1, 7});
  for (const auto level : cpu_levels()) {
    matrix<float> probabilities(2, 3), gates(2, 2);
    run_rows(level, 2, moe::gates_of_forced{}, logits.in(), probabilities.out(), ids.in(), gates.out());
    CHECK(gates.values() == std::vector<float>{1, 0, 0, 0});
    matrix<float> dlogits(2, 3);
    const matrix<float> dgates(2, 2, {5, 6, 7, 8});
    run_rows(level, 2, moe::route_backward{0.0f}, logits.in(), ids.in(), std::as_const(gates).in(),
             dgates.in(), plateau::view<const float>{}, dlogits.out());
    CHECK(dlogits.values() == std::vector<float>(6, 0.0f));
  }
}

TEST_CASE("given experts share the gates however improbable all of them are") {
  const std::vector<float> row{500, 3, 1, -400, 2};
  const matrix<float> logits(1, 5, row);
  const matrix<std::int32_t> ids(1, 3, {2, 3, 1});
  reference::vec expected{std::exp(1.0 - 3.0), std::exp(-400.0 - 3.0), 1.0};
  const double sum = expected[0] + expected[1] + expected[2];
  for (double& gate : expected) gate /= sum;
  for (const auto level : cpu_levels()) {
    matrix<float> probabilities(1, 5), gates(1, 3);
    run_rows(level, 1, moe::gates_of_forced{}, logits.in(), probabilities.out(), ids.in(), gates.out());
    CHECK(probabilities.values() == std::vector<float>{1, 0, 0, 0, 0});
    check_accurate(gates.values(), expected, 3);
  }
}
