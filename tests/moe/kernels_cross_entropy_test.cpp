// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy against float64: losses and gradients, in place and not, targets that do not exist, logits of
// any size and infinite ones.

#include "kernels/cross_entropy.hpp"
#include "reference/layers.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using plateau::bfloat16, plateau::index_t;
using namespace support;

TEST_CASE_TEMPLATE("losses and gradients agree with float64, in place too", T, float, bfloat16) {
  for (const auto level : cpu_levels())
    for (const index_t vocabulary : {1, 2, 3, 31, 32, 33, 100, 1045})
      for (const double scale : {1.0, 20.0}) {
        const std::string name = plateau::cpu_level_name(level);
        CAPTURE(name);
        CAPTURE(vocabulary);
        CAPTURE(scale);
        const index_t n = 5;
        const auto z = random_values<float>(n * vocabulary, static_cast<std::uint64_t>(vocabulary), scale);
        const std::vector<std::int32_t> targets{0, static_cast<std::int32_t>(vocabulary - 1), -1,
                                                static_cast<std::int32_t>(vocabulary),
                                                static_cast<std::int32_t>(vocabulary / 2)};
        const float share = 0.2f;
        const std::vector<index_t> labels(targets.begin(), targets.end());
        const auto expected = reference::cross_entropy(widened(z), labels, vocabulary);
        const auto gradient = reference::cross_entropy_backward(reference::vec(5, static_cast<double>(share)),
                                                                widened(z), labels, vocabulary);

        matrix<float> logits(n, vocabulary, z);
        matrix<T> dlogits(n, vocabulary);
        std::vector<float> losses(5), losses_only(5);
        run_rows(level, n, moe::cross_entropy_loss{}, std::as_const(logits).in(), all(targets),
                 all(losses_only));
        run_rows(level, n, moe::cross_entropy{share}, logits.out(), all(targets), dlogits.out(), all(losses));
        CHECK(same_bits(logits.values(), z));
        CHECK(same_bits(losses, losses_only));
        CHECK(losses[2] == 0.0f);
        CHECK(losses[3] == 0.0f);
        check_accurate(losses, expected, 3);
        if (vocabulary > 1) {
          check_accurate(dlogits.values(), gradient, std::is_same_v<T, float> ? 6 : 1);
        } else {
          CHECK(same_bits(dlogits.values(), std::vector<T>(5, static_cast<T>(0.0f))));
        }
        CHECK(dlogits.spare_untouched());

        if constexpr (std::is_same_v<T, float>) {
          run_rows(level, n, moe::cross_entropy{share}, logits.out(), all(targets), logits.out(),
                   all(losses));
          CHECK(same_bits(logits.values(), dlogits.values()));
          CHECK(same_bits(losses, losses_only));
          CHECK(logits.spare_untouched());
        }
      }
}

TEST_CASE("logits of any size: what is finite stays finite") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float largest = std::numeric_limits<float>::max();
  const std::vector<std::int32_t> targets{1};
  struct {
    std::vector<float> logits;
    float loss;
    std::vector<float> gradient;
  } const cases[] = {
      {{0, 0, -infinity, -infinity}, 0.6931472f, {0.5f, -0.5f, 0, 0}},
      {{-infinity, 3, -infinity, -infinity}, 0, {0, 0, 0, 0}},
      {{1e30f, 1e30f, -1e30f, 0}, 0.6931472f, {0.5f, -0.5f, 0, 0}},
      {{-largest, largest, 0, -infinity}, 0, {0, 0, 0, 0}},
      {{largest, 0, 0, 0}, largest, {1, -1, 0, 0}},
      {{-largest, -largest, -infinity, -infinity}, 0.6931472f, {0.5f, -0.5f, 0, 0}},
      {{0, -infinity, -infinity, -infinity}, infinity, {1, -1, 0, 0}},
  };
  for (const auto level : cpu_levels())
    for (const auto& c : cases) {
      matrix<float> logits(1, 4, c.logits);
      std::vector<float> loss(1);
      run_rows(level, 1, moe::cross_entropy{1.0f}, logits.out(), all(targets), logits.out(), all(loss));
      CHECK((loss[0] == c.loss || loss[0] == doctest::Approx(c.loss)));
      for (index_t i = 0; i < 4; ++i) CHECK(logits.at(0, i) == doctest::Approx(c.gradient[i]));
    }
}

TEST_CASE("a logit that is NaN or +infinity shows in the loss") {
  const std::vector<std::int32_t> targets{1};
  for (const auto level : cpu_levels())
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const index_t at : {0, 1, 39}) {
        matrix<float> logits(1, 40, std::vector<float>(40, 0.5f));
        logits.at(0, at) = bad;
        std::vector<float> loss(1);
        run_rows(level, 1, moe::cross_entropy_loss{}, std::as_const(logits).in(), all(targets), all(loss));
        CHECK_FALSE(plateau::is_finite(loss[0]));
      }
}
