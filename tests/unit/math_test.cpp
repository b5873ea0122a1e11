// SPDX-License-Identifier: Apache-2.0
//
// exp and the roots against double over all float patterns (a prime stride through the 2^32), at every CPU
// level of this machine: with and without fused multiply-add the stated bounds hold.
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/math.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

struct take_exp {
  PLATEAU_HD void operator()(pl::index_t i, const float* x, float* y) const { y[i] = pl::exp(x[i]); }
};
struct take_sqrt {
  PLATEAU_HD void operator()(pl::index_t i, const float* x, float* y) const { y[i] = pl::sqrt(x[i]); }
};
struct take_rsqrt {
  PLATEAU_HD void operator()(pl::index_t i, const float* x, float* y) const { y[i] = pl::rsqrt(x[i]); }
};

struct errors {
  double worst_ulp = 0.0;         // where the exact result is a normal float
  double worst_below_normal = 0;  // absolute
  std::int64_t wrong_special = 0; // NaN, infinity, and zero where exact
};

double unit_in_last_place(double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::ldexp(1.0, exponent - 24);
}

template <class Kernel, class Exact> errors sweep(pl::cpu_level level, std::uint32_t stride, Exact exact) {
  constexpr pl::index_t block = 1 << 14;
  std::vector<float> x(block), y(block);
  errors out;
  std::uint64_t pattern = 0;
  while (pattern < (std::uint64_t{1} << 32)) {
    pl::index_t n = 0;
    for (; n < block && pattern < (std::uint64_t{1} << 32); ++n, pattern += stride)
      x[static_cast<std::size_t>(n)] = pl::bit_cast<float>(static_cast<std::uint32_t>(pattern));
    pl::host::run_elements(level, 0, n, Kernel{}, static_cast<const float*>(x.data()), y.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const double want = exact(static_cast<double>(x[i]));
      const float got = y[i];
      if (std::isnan(want))
        out.wrong_special += !std::isnan(got);
      else if (std::fabs(want) > static_cast<double>(std::numeric_limits<float>::max()))
        out.wrong_special += !(std::isinf(got) && (got > 0) == (want > 0));
      else if (std::isnan(got) || std::isinf(got))
        ++out.wrong_special;
      else if (std::fabs(want) < 0x1p-126)
        out.worst_below_normal = std::max(out.worst_below_normal, std::fabs(want - static_cast<double>(got)));
      else
        out.worst_ulp =
            std::max(out.worst_ulp, std::fabs(want - static_cast<double>(got)) / unit_in_last_place(want));
    }
  }
  return out;
}

std::vector<pl::cpu_level> levels_here() {
  std::vector<pl::cpu_level> out;
  for (const auto level : {pl::cpu_level::baseline, pl::cpu_level::avx2, pl::cpu_level::avx512})
    if (pl::cpu_supports(level)) out.push_back(level);
  return out;
}

constexpr std::uint32_t stride = 1009; // prime: 4.3 million points a function and level

} // namespace

TEST_CASE("exp: 2 ulp where normal, 2^-126 below, at every CPU level") {
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    const errors found = sweep<take_exp>(level, stride, [](double x) { return std::exp(x); });
    CHECK(found.worst_ulp <= 2.0);
    CHECK(found.worst_below_normal <= 0x1p-126);
    CHECK(found.wrong_special == 0);
  }
}

TEST_CASE("sqrt: 1 ulp, and rsqrt: 2 ulp, subnormals included, at every CPU level") {
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    const errors root = sweep<take_sqrt>(level, stride, [](double x) { return std::sqrt(x); });
    CHECK(root.worst_ulp <= 1.0);
    CHECK(root.wrong_special == 0);
    const errors inverse =
        sweep<take_rsqrt>(level, stride, [](double x) { return x == 0.0 ? HUGE_VAL : 1.0 / std::sqrt(x); });
    CHECK(inverse.worst_ulp <= 2.0);
    CHECK(inverse.wrong_special == 0);
  }
}

TEST_CASE("exp at and around its limits") {
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    const float last_finite = 0x1.62e42ep+6f, first_flushed = -0x1.5d58a2p+6f;
    std::vector<float> x{-infinity,
                         -1e30f,
                         first_flushed,
                         -87.0f,
                         -0.0f,
                         0.0f,
                         last_finite,
                         infinity,
                         1e30f,
                         quiet_nan,
                         -quiet_nan,
                         std::nextafter(last_finite, infinity),
                         pl::bit_cast<float>(0x7f800001u),
                         pl::bit_cast<float>(0xff800001u)};
    std::vector<float> y(x.size());
    pl::host::run_elements(level, 0, static_cast<pl::index_t>(x.size()), take_exp{},
                           static_cast<const float*>(x.data()), y.data());
    CHECK(y[0] == 0.0f);
    CHECK(y[1] == 0.0f);
    CHECK(y[2] == 0.0f);
    CHECK(y[3] == doctest::Approx(std::exp(-87.0)).epsilon(1e-6));
    CHECK(y[4] == 1.0f);
    CHECK(y[5] == 1.0f);
    CHECK(y[6] == doctest::Approx(std::exp(static_cast<double>(last_finite))).epsilon(1e-6));
    CHECK(y[7] == infinity);
    CHECK(y[8] == infinity);
    for (const std::size_t nan : {9u, 10u, 12u, 13u}) CHECK(std::isnan(y[nan]));
    CHECK(y[11] == infinity);
  }
}

TEST_CASE("roots at special values") {
  CHECK(pl::sqrt(0.0f) == 0.0f);
  CHECK(std::signbit(pl::sqrt(-0.0f)));
  CHECK(pl::sqrt(infinity) == infinity);
  CHECK(pl::sqrt(4.0f) == 2.0f);
  CHECK(std::isfinite(pl::sqrt(std::numeric_limits<float>::max())));
  CHECK(pl::sqrt(std::numeric_limits<float>::denorm_min()) == doctest::Approx(std::sqrt(0x1p-149)));
  for (const float bad : {-1.0f, -infinity, quiet_nan, -std::numeric_limits<float>::denorm_min()}) {
    CHECK(std::isnan(pl::sqrt(bad)));
    CHECK(std::isnan(pl::rsqrt(bad)));
  }
  CHECK(pl::rsqrt(0.0f) == infinity);
  CHECK(pl::rsqrt(infinity) == 0.0f);
  CHECK(pl::rsqrt(0.25f) == 2.0f);
}

TEST_CASE("every floating scalar is taken, in its accumulate type") {
  static_assert(std::is_same_v<decltype(pl::exp(pl::bfloat16{})), float>);
  static_assert(std::is_same_v<decltype(pl::sqrt(1.0)), double>);
  CHECK(pl::exp(pl::bfloat16{1.0f}) == pl::exp(1.0f));
  CHECK(pl::exp(0.3) == std::exp(0.3));
  CHECK(pl::rsqrt(0.3) == 1.0 / std::sqrt(0.3));
  CHECK(pl::silu(pl::half{2.0f}) == pl::silu(2.0f));
}

TEST_CASE("sigmoid and silu over the whole range") {
  for (float x = -120.0f; x <= 120.0f; x += 0.37f) {
    const double exact = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    CHECK(std::fabs(static_cast<double>(pl::sigmoid(x)) - exact) <= 4e-7 * exact + 0x1p-126);
    CHECK(std::fabs(static_cast<double>(pl::silu(x)) - static_cast<double>(x) * exact) <=
          4e-7 * std::fabs(static_cast<double>(x)) * exact + 0x1p-119);
  }
  CHECK(pl::sigmoid(-infinity) == 0.0f);
  CHECK(pl::sigmoid(infinity) == 1.0f);
}

TEST_CASE("finiteness, NaN, and where maxima start") {
  static_assert(pl::is_finite(1.0f) && pl::is_finite(-std::numeric_limits<float>::max()) &&
                pl::is_finite(1.0));
  static_assert(!pl::is_finite(infinity) && !pl::is_finite(-infinity) && !pl::is_finite(quiet_nan));
  static_assert(!pl::is_finite(std::numeric_limits<double>::infinity()));
  static_assert(pl::is_nan(quiet_nan) && pl::is_nan(-quiet_nan) && !pl::is_nan(infinity));
  static_assert(pl::is_nan(std::numeric_limits<double>::quiet_NaN()) && !pl::is_nan(-1.0));
  static_assert(pl::lowest<float>() == std::numeric_limits<float>::lowest());
  static_assert(pl::lowest<double>() == std::numeric_limits<double>::lowest());
  static_assert(pl::lowest<pl::half>() == -65504.0f);
  static_assert(pl::is_finite(pl::lowest<pl::bfloat16>()) && !pl::is_finite(pl::bfloat16::from_bits(0xff80)));
}
