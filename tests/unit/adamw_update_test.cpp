// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of AdamW: against float64 over many steps and against what PyTorch makes of the same
// numbers; the same bits at every level of vectors, for every length, with any number of threads and with a
// team of many members. What a step that is skipped leaves, and which settings are refused.

#include "reference/optimizer.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/staging/adamw_settings.hpp>
#include <plateau/staging/host_adamw.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

using namespace plateau;
using support::all, support::random_values, support::same_bits, support::widened;

namespace {

constexpr index_t lengths[] = {0, 1, 15, 16, 17, 22, 127, 128, 129, 1025, 1045, 2047, 2048, 2049, 4096};
const std::vector<float> go{1, 0};

template <class T> view<T, host_space> pinned(std::vector<T>& v) {
  return {v.data(), static_cast<index_t>(v.size())};
}
template <class T> view<const T, host_space> pinned(const std::vector<T>& v) {
  return {v.data(), static_cast<index_t>(v.size())};
}

template <class Parameter> struct state {
  std::vector<float> master, m, v;
  std::vector<Parameter> parameter;

  explicit state(index_t n)
      : master(random_values<float>(n, 1, 0.1)), m(master.size()), v(master.size()),
        parameter(master.size()) {}
  bool operator==(const state& other) const {
    return same_bits(master, other.master) && same_bits(m, other.m) && same_bits(v, other.v) &&
           same_bits(parameter, other.parameter);
  }
  state first(index_t n) const {
    state s(0);
    s.master.assign(master.begin(), master.begin() + n), s.m.assign(m.begin(), m.begin() + n);
    s.v.assign(v.begin(), v.begin() + n), s.parameter.assign(parameter.begin(), parameter.begin() + n);
    return s;
  }
};

template <class G, class P>
void step_by_kernel(cpu_level level, const adamw_factors& f, const std::vector<G>& g,
                    const std::vector<float>& control, state<P>& s) {
  support::run_rows(level, adamw_update::rows_of(static_cast<index_t>(g.size())), adamw_update{f}, all(g),
                    all(control), all(s.master), all(s.m), all(s.v), all(s.parameter));
}
template <class G, class P>
void step_by_host(host_adamw& host, const adamw_factors& f, const std::vector<G>& g,
                  const std::vector<float>& control, state<P>& s) {
  host.update(f, pinned(g), pinned(control), pinned(s.master), pinned(s.m), pinned(s.v), pinned(s.parameter));
}

// Several steps with what varies in a training: rate, size of gradients, clipping.
template <class G, class P, class Step> state<P> train(index_t n, Step step) {
  state<P> s(n);
  const adamw_group group{3e-3, 0.9, 0.99, 1e-8, 0.1};
  for (int i = 1; i <= 3; ++i) {
    const auto g = random_values<G>(n, static_cast<std::uint64_t>(100 + i), i == 2 ? 1e-4 : 0.3);
    step(adamw_factors_of(group, i), g, std::vector<float>{i == 3 ? 0.37f : 1.0f, 0}, s);
  }
  return s;
}

} // namespace

TEST_CASE_TEMPLATE("AdamW follows float64 over 20 steps, as closely as a plain loop in float", G, float,
                   bfloat16) {
  const index_t n = 2100;
  for (const auto level : support::cpu_levels()) {
    CAPTURE(static_cast<int>(level));
    state<bfloat16> s(n);
    reference::vec weight = widened(s.master), m = reference::zeros(n), v = reference::zeros(n);
    std::vector<float> plain = s.master, plain_m(plain.size()), plain_v(plain.size());
    for (int step = 1; step <= 20; ++step) {
      const adamw_group group{1e-3 * step, 0.9, 0.999, 1e-8, 0.1};
      const auto g = random_values<G>(n, static_cast<std::uint64_t>(100 + step), step % 3 == 0 ? 1e-4 : 0.3);
      step_by_kernel(level, adamw_factors_of(group, step), g, {0.5f, 0}, s);
      reference::vec halved = widened(g);
      for (double& x : halved) x *= 0.5;
      reference::adamw(weight, halved, m, v, step, {group.learning_rate, 0.9, 0.999, 1e-8, 0.1});
      const float rate = static_cast<float>(group.learning_rate);
      const float correction1 = static_cast<float>(1 - std::pow(0.9, step));
      const float correction2 = static_cast<float>(1 - std::pow(0.999, step));
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const float x = 0.5f * static_cast<float>(g[i]);
        plain_m[i] = 0.9f * plain_m[i] + 0.1f * x;
        plain_v[i] = 0.999f * plain_v[i] + 0.001f * x * x;
        const float root = std::sqrt(plain_v[i] / correction2);
        plain[i] -= rate * (plain_m[i] / correction1 / (root + 1e-8f) + 0.1f * plain[i]);
      }
    }
    const auto as_close = [](const std::vector<float>& ours, const std::vector<float>& loop,
                             const reference::vec& exact) {
      const auto from = [](const std::vector<float>& x) {
        return [&x](std::size_t i) { return static_cast<double>(x[i]); };
      };
      const auto found = support::deviation_of(exact, from(ours)),
                 allowed = support::deviation_of(exact, from(loop));
      const double size = support::deviation_of(exact, [](std::size_t) { return 0.0; }).rms;
      const double unit = support::unit_in_last_place<float>(size);
      CHECK(found.rms <= 2 * allowed.rms + unit);
      CHECK(found.largest <= 2 * allowed.largest + unit);
    };
    as_close(s.master, plain, weight);
    as_close(s.m, plain_m, m);
    as_close(s.v, plain_v, v);
    CHECK(same_bits(s.parameter, support::rounded<bfloat16>(widened(s.master))));
  }
}

TEST_CASE_TEMPLATE("O1: every level, length, part and number of threads leaves the same bits", P, bfloat16,
                   half, float) {
  const auto check_all = [](auto gradient) {
    using G = decltype(gradient);
    const index_t longest = 4096;
    const auto step = [](cpu_level level) {
      return [level](auto f, auto& g, auto control, auto& s) { step_by_kernel(level, f, g, control, s); };
    };
    const auto expected = train<G, P>(longest, step(cpu_level::baseline));
    for (const index_t n : lengths) {
      CAPTURE(n);
      const state<P> part = expected.first(n);
      for (const auto level : support::cpu_levels()) {
        CAPTURE(static_cast<int>(level));
        CHECK(train<G, P>(n, step(level)) == part);
        host_adamw host(1, level);
        CHECK(train<G, P>(n, [&](auto f, auto& g, auto control, auto& s) {
                step_by_host(host, f, g, control, s);
              }) == part);
      }
    }
  };
  check_all(float{});
  check_all(bfloat16{});
}

TEST_CASE("O1: threads share a long tensor, and its parameters leave around the caches") {
  // 600011: more chunks than threads, and long enough that parameters are not written through the caches.
  for (const index_t n : {100003, 600011}) {
    CAPTURE(n);
    const auto expected = train<bfloat16, bfloat16>(n, [](auto f, auto& g, const auto& control, auto& s) {
      host::run_rows(detect_cpu_level(), index_t{0}, adamw_update::rows_of(static_cast<index_t>(g.size())),
                     adamw_update{f}, all(g), all(control), all(s.master), all(s.m), all(s.v),
                     all(s.parameter));
    });
    for (const int threads : {1, 2, 3}) {
      host_adamw host(threads);
      CHECK(host.threads() == threads);
      CHECK(train<bfloat16, bfloat16>(n, [&](auto f, auto& g, auto control, auto& s) {
              step_by_host(host, f, g, control, s);
            }) == expected);
      // Parameters that begin where no vector does.
      auto moved = expected;
      moved.parameter.resize(static_cast<std::size_t>(n + 3));
      const auto f = adamw_factors_of({}, 4);
      const std::vector<bfloat16> g = random_values<bfloat16>(n, 5);
      auto in_place = expected;
      step_by_host(host, f, g, go, in_place);
      host.update(f, pinned(g), pinned(go), pinned(moved.master), pinned(moved.m), pinned(moved.v),
                  pinned(moved.parameter).sub(3, n));
      CHECK(same_bits(std::vector<bfloat16>(moved.parameter.begin() + 3, moved.parameter.end()),
                      in_place.parameter));
    }
  }
}

TEST_CASE_TEMPLATE("O7: a step that is skipped leaves every bit", P, bfloat16, float) {
  constexpr float bad[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (const index_t n : {1, 33, 2100})
    for (const float value : bad) {
      state<P> before(n);
      before.parameter = random_values<P>(n, 3); // not the rounded master: kept all the same
      before.m[0] = -0.0f, before.v[0] = 1e-42f; // a zero with a sign, a subnormal number
      std::vector<float> g = random_values<float>(n, 4);
      g[static_cast<std::size_t>(n / 2)] = value;
      const auto f = adamw_factors_of({}, 2);
      const std::vector<float> skip{value, 1};
      for (const auto level : support::cpu_levels()) {
        state<P> s = before;
        step_by_kernel(level, f, g, skip, s);
        CHECK(s == before);
      }
      state<P> s = before;
      host_adamw host;
      step_by_host(host, f, g, skip, s);
      CHECK(s == before);
    }
}

TEST_CASE("without a parameter the masters alone are written, to the same bits") {
  const index_t n = 2100;
  state<bfloat16> with(n), without(n), by_host(n);
  const auto g = random_values<float>(n, 4);
  const auto f = adamw_factors_of({}, 1);
  step_by_kernel(cpu_level::baseline, f, g, go, with);
  support::run_rows(cpu_level::baseline, adamw_update::rows_of(n), adamw_update{f}, all(g), all(go),
                    all(without.master), all(without.m), all(without.v));
  host_adamw().update(f, pinned(g), pinned(go), pinned(by_host.master), pinned(by_host.m), pinned(by_host.v));
  CHECK(same_bits(with.master, without.master));
  CHECK(same_bits(with.v, without.v));
  CHECK(same_bits(with.master, by_host.master));
  CHECK(same_bits(with.m, by_host.m));
}

TEST_CASE("host_adamw names what does not fit") {
  host_adamw host;
  state<float> s(8);
  const std::vector<float> g(8), shorter(7);
  const auto update = [&](const std::vector<float>& gradient, const std::vector<float>& control) {
    const state<float> before = s;
    std::string text;
    try {
      step_by_host(host, adamw_factors_of({}, 1), gradient, control, s);
    } catch (const config_error& e) {
      text = e.what();
    }
    CHECK(s == before);
    return text;
  };
  CHECK(update(shorter, go) == "plateau: host_adamw: gradient has 7 elements, expected 8");
  CHECK(update(g, shorter) == "plateau: host_adamw: control has 7 elements, expected 2");
  CHECK_THROWS_WITH_AS(host_adamw(0), "plateau: host_adamw: threads must be 1 to 4096, got 0", config_error);
}

TEST_CASE("settings that cannot be are refused with their value and their group") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                   infinity = std::numeric_limits<double>::infinity();
  const auto refused = [](adamw_group g) {
    try {
      g.check(3);
    } catch (const config_error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  CHECK(refused({}) == "nothing");
  CHECK(refused({0, 0, 0, 0, 0}) == "nothing");
  CHECK(refused({.learning_rate = nan}) ==
        "plateau: adamw: learning_rate of group 3 is nan; expected a finite number of at least 0");
  CHECK(refused({.learning_rate = infinity}).find("learning_rate of group 3 is inf") != std::string::npos);
  CHECK(refused({.learning_rate = -1e-3}).find("learning_rate of group 3 is -0.001") != std::string::npos);
  CHECK(refused({.beta1 = 1}) ==
        "plateau: adamw: beta1 of group 3 is 1; expected at least 0 and less than 1");
  CHECK(refused({.beta1 = nan}).find("beta1 of group 3 is nan") != std::string::npos);
  CHECK(refused({.beta2 = -0.5}).find("beta2 of group 3 is -0.5") != std::string::npos);
  CHECK(refused({.epsilon = -1e-8}).find("epsilon of group 3 is -1") != std::string::npos);
  CHECK(refused({.weight_decay = nan}).find("weight_decay of group 3 is nan") != std::string::npos);
}

TEST_CASE("O9: factors of a step are computed in double, and counts have 64 bits") {
  const adamw_factors first = adamw_factors_of({}, 1);
  CHECK(first.rest1 == 0.1f);
  CHECK(first.rest2 == 0.001f); // 1 - 0.999f is 0.00100004673
  CHECK(first.root_scale == doctest::Approx(std::sqrt(1000.0)).epsilon(1e-7));
  CHECK(first.step_size == doctest::Approx(1e-2).epsilon(1e-7));
  CHECK(first.kept == 0.99999f);
  CHECK(adamw_factors_of({}, 1, false).kept == 1.0f);
  const adamw_factors late = adamw_factors_of({}, (std::int64_t{1} << 32) + 1); // 1 in 32 bits
  CHECK(late.root_scale == 1.0f);
  CHECK(late.step_size == 1e-3f);
}

namespace {

// As tests/golden/adamw/make_adamw.py has them.
std::uint32_t hashed(std::uint32_t seed, std::uint32_t i) {
  std::uint32_t x = i * 2654435761u + seed * 40503u;
  for (const std::uint32_t multiplier : {0x7FEB352Du, 0x846CA68Bu}) {
    x ^= x >> 16;
    x *= multiplier;
  }
  return x ^ (x >> 15);
}
float value_of(std::uint32_t seed, std::uint32_t i) {
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(hashed(seed, i) >> 8) - (1 << 23)), -23);
}
float gradient_of(std::uint32_t step, std::uint32_t i) {
  const std::uint32_t kind = hashed(7, i);
  return (kind >> 8) % 64 == 0 ? 0.0f : std::ldexp(value_of(100 + step, i), -4 - static_cast<int>(kind & 7));
}

} // namespace

TEST_CASE(
    "AdamW is PyTorch's, to 4 units in the last place of what is larger, the value or the tensor's RMS") {
  std::ifstream file(std::string(PLATEAU_GOLDEN_DIR) + "/adamw/values.bin", std::ios::binary);
  REQUIRE(file.good());
  const auto next = [&file] {
    float x = std::numeric_limits<float>::quiet_NaN();
    file.read(reinterpret_cast<char*>(&x), sizeof x);
    return static_cast<double>(x);
  };
  double worst = 0;
  const auto check_type = [&](auto type) {
    using G = decltype(type);
    for (const index_t n : {1, 17, 33 * 65, 257 * 129, 513, 1025, 278011}) {
      CAPTURE(n);
      state<float> s(0);
      for (index_t i = 0; i < n; ++i) s.master.push_back(value_of(1, static_cast<std::uint32_t>(i)));
      s.m.resize(s.master.size()), s.v = s.m;
      std::vector<G> g(s.master.size());
      std::uint32_t step = 0;
      while (step < 20) {
        const double rate = 1e-3 * (1 + step % 5);
        for (index_t i = 0; i < n; ++i)
          g[static_cast<std::size_t>(i)] = static_cast<G>(gradient_of(step, static_cast<std::uint32_t>(i)));
        host::run_rows(detect_cpu_level(), index_t{0}, adamw_update::rows_of(n),
                       adamw_update{adamw_factors_of({.learning_rate = rate}, ++step)}, all(std::as_const(g)),
                       all(go), all(s.master), all(s.m), all(s.v));
      }
      for (const std::vector<float>* tensor : {&s.master, &s.m, &s.v}) {
        const double rms = next();
        double largest = 0; // difference in units in the last place
        for (index_t i = 0; i < n; ++i) {
          if (n > 2200 && i % 97 != 0 && i < n - 64) continue;
          const double expected = next(), found = static_cast<double>((*tensor)[static_cast<std::size_t>(i)]);
          const double unit = support::unit_in_last_place<float>(std::max(std::fabs(expected), rms));
          const double difference = std::fabs(found - expected) / unit;
          largest = difference <= largest ? largest : difference; // a NaN stays
        }
        CHECK(largest <= 4);
        worst = std::max(worst, largest);
      }
    }
  };
  check_type(float{});
  check_type(bfloat16{});
  MESSAGE("largest difference from PyTorch: " << worst << " units in the last place");
  CHECK(next() != next()); // nothing is left: NaN
}
