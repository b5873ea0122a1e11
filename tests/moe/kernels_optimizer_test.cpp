// SPDX-License-Identifier: Apache-2.0
//
// AdamW against float64 over many steps, at lengths around those of vectors; and the decision to clip or to
// skip, which must leave every bit of the state.

#include "kernels/optimizer.hpp"
#include "reference/optimizer.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using plateau::bfloat16, plateau::index_t; // CUDA has a half of its own
using namespace support;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

moe::adamw at_step(int step) {
  moe::adamw o{0.9f, 0.99f, 1e-8f, 0.1f, 3e-3f, 0, 0};
  o.correction1 = static_cast<float>(1 - std::pow(static_cast<double>(o.beta1), step));
  o.correction2 = static_cast<float>(1 - std::pow(static_cast<double>(o.beta2), step));
  return o;
}

struct state {
  std::vector<float> master, m, v;

  explicit state(index_t n) : master(random_values<float>(n, 1, 0.1)), m(master.size()), v(master.size()) {}
};

const std::vector<float> go{1, 0};

} // namespace

TEST_CASE("AdamW follows float64 over 20 steps") {
  const index_t n = 257;
  for (const auto level : cpu_levels()) {
    const std::string name = plateau::cpu_level_name(level);
    CAPTURE(name);
    state s(n);
    std::vector<bfloat16> parameter = rounded<bfloat16>(widened(s.master));
    reference::vec weight = widened(s.master), m = reference::zeros(n), v = reference::zeros(n);
    const std::vector<float> halved{0.5f, 0};
    for (int step = 1; step <= 20; ++step) {
      const auto g =
          random_values<float>(n, static_cast<std::uint64_t>(100 + step), step % 3 == 0 ? 1e-4 : 0.3);
      const moe::adamw o = at_step(step);
      run_elements(level, n, o, all(g), all(halved), all(s.master), all(s.m), all(s.v), all(parameter));
      reference::vec half_g = widened(g);
      for (double& x : half_g) x *= 0.5;
      reference::adamw(weight, half_g, m, v, step,
                       {static_cast<double>(o.learning_rate), static_cast<double>(o.beta1),
                        static_cast<double>(o.beta2), static_cast<double>(o.epsilon),
                        static_cast<double>(o.weight_decay)});
    }
    // 20 roundings of the state instead of one.
    check_accurate(s.master, weight, 4);
    check_accurate(s.m, m, 4);
    check_accurate(s.v, v, 10);
    CHECK(same_bits(parameter, rounded<bfloat16>(widened(s.master))));
  }
}

TEST_CASE("O1: the tail of a tensor is updated as its body is, for every length around a vector's") {
  const index_t longest = 1045;
  const auto g = random_values<float>(longest, 7);
  for (const auto level : cpu_levels()) {
    const std::string name = plateau::cpu_level_name(level);
    CAPTURE(name);
    state whole(longest);
    std::vector<bfloat16> parameter(static_cast<std::size_t>(longest));
    for (int step = 1; step <= 2; ++step)
      run_part(level, 0, longest, at_step(step), all(g), all(go), all(whole.master), all(whole.m),
               all(whole.v), all(parameter));
    for (const index_t n : {0, 1, 15, 16, 17, 22, 127, 128, 129, 1025, 1045}) {
      CAPTURE(n);
      state s(longest);
      s.master.resize(n), s.m.resize(n), s.v.resize(n);
      std::vector<bfloat16> p(static_cast<std::size_t>(n));
      std::vector<float> part(g.begin(), g.begin() + n);
      state no_parameter = s;
      for (int step = 1; step <= 2; ++step) {
        run_elements(level, n, at_step(step), all(std::as_const(part)), all(go), all(s.master), all(s.m),
                     all(s.v), all(p));
        run_elements(level, n, moe::adamw_fp32{at_step(step)}, all(std::as_const(part)), all(go),
                     all(no_parameter.master), all(no_parameter.m), all(no_parameter.v));
      }
      const auto starts_like = [n](const auto& longer, const auto& shorter) {
        return same_bits({longer.begin(), longer.begin() + n}, shorter);
      };
      CHECK(starts_like(whole.master, s.master));
      CHECK(starts_like(whole.m, s.m));
      CHECK(starts_like(whole.v, s.v));
      CHECK(starts_like(parameter, p));
      CHECK(same_bits(no_parameter.master, s.master));
      CHECK(same_bits(no_parameter.m, s.m));
      CHECK(same_bits(no_parameter.v, s.v));
    }
  }
}

TEST_CASE_TEMPLATE("O7: one gradient that is not finite leaves the bits of state and parameter", T, bfloat16,
                   plateau::half, float) {
  for (const auto level : cpu_levels())
    for (const float bad : {infinity, -infinity, quiet_nan})
      for (const index_t n : {1, 33, 100}) {
        CAPTURE(bad);
        CAPTURE(n);
        state s(n);
        std::vector<T> parameter = random_values<T>(n, 3); // not the rounded master: kept all the same
        auto g = random_values<float>(n, 4);
        run_elements(level, n, at_step(1), all(std::as_const(g)), all(go), all(s.master), all(s.m), all(s.v));
        s.m[0] = -0.0f;
        const state before = s;
        const auto parameter_before = parameter;

        g[static_cast<std::size_t>(n / 2)] = bad;
        std::vector<double> squares(static_cast<std::size_t>((n + 31) / 32));
        std::vector<float> control(2), norm(1);
        run_rows(level, (n + 31) / 32, moe::sum_of_squares{32}, all(std::as_const(g)), all(squares));
        run_rows(level, 1, moe::clip_control{1.0f}, all(std::as_const(squares)), all(control), all(norm));
        CHECK_FALSE(plateau::is_finite(norm[0]));
        CHECK(control == std::vector<float>{1, 1});
        run_elements(level, n, at_step(2), all(std::as_const(g)), all(std::as_const(control)), all(s.master),
                     all(s.m), all(s.v), all(parameter));
        CHECK(same_bits(s.master, before.master));
        CHECK(same_bits(s.m, before.m));
        CHECK(same_bits(s.v, before.v));
        CHECK(same_bits(parameter, parameter_before));
      }
}

TEST_CASE("O8: a NaN norm skips one step and the next one goes on") {
  std::vector<float> control(2), norm(1);
  const std::vector<double> bad{1.0, std::numeric_limits<double>::quiet_NaN()}, good{9.0, 16.0};
  run_rows(plateau::cpu_level::baseline, 1, moe::clip_control{1.0f}, all(bad), all(control), all(norm));
  CHECK(control[1] != 0.0f);
  run_rows(plateau::cpu_level::baseline, 1, moe::clip_control{1.0f}, all(good), all(control), all(norm));
  CHECK(control[1] == 0.0f);
  CHECK(norm[0] == 5.0f);
  CHECK(control[0] == doctest::Approx(0.2).epsilon(1e-6));
}

TEST_CASE("clipping multiplies only what is too long") {
  struct {
    std::vector<double> squares;
    float limit, factor;
    bool skips;
  } const cases[] = {
      {{}, 1.0f, 1.0f, false},    {{0.25}, 1.0f, 1.0f, false},      {{4.0}, 1.0f, 0.5f, false},
      {{4.0}, 0.0f, 1.0f, false}, {{4.0}, -1.0f, 1.0f, false},      {{1e60, 0, 3e60}, 1.0f, 5e-31f, false},
      {{1e80}, 1.0f, 1.0f, true}, {{double{infinity}}, 1, 1, true}, {{double{quiet_nan}}, 0, 1, true},
  };
  for (const auto& c : cases) {
    std::vector<float> control(2), norm(1);
    run_rows(plateau::cpu_level::baseline, 1, moe::clip_control{c.limit}, all(c.squares), all(control),
             all(norm));
    CHECK((control[0] == c.factor || control[0] == doctest::Approx(c.factor).epsilon(1e-5)));
    CHECK((control[1] != 0.0f) == c.skips);
  }
}

TEST_CASE("squares and values are summed in double, block by block") {
  for (const auto level : cpu_levels())
    for (const index_t n : {1, 2, 31, 33, 1000})
      for (const index_t block : {1, 7, 32, 1000, 4096}) {
        const auto g = random_values<float>(n, 9, 1e25); // squares no float can hold
        std::vector<double> partial(static_cast<std::size_t>((n + block - 1) / block)), sum(1);
        run_rows(level, static_cast<index_t>(partial.size()), moe::sum_of_squares{block}, all(g),
                 all(partial));
        double found = 0, expected = 0, values = 0, sizes = 0;
        for (const double p : partial) found += p;
        for (const double x : widened(g)) expected += x * x, values += x, sizes += std::fabs(x);
        CHECK(found == doctest::Approx(expected).epsilon(1e-13));
        run_rows(level, 1, moe::sum_values{}, all(g), all(sum));
        CHECK(std::fabs(sum[0] - values) <= 1e-14 * sizes);
      }
}
