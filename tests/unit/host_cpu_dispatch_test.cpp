// SPDX-License-Identifier: Apache-2.0
//
// Every CPU level of this machine runs every index and row of a range once and nothing beyond it, computes
// what the plain loop does, and gives the same bits however the range is cut.
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/math.hpp>
#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace pl = plateau;

namespace {

struct count_visits {
  PLATEAU_HD void operator()(pl::index_t i, std::int32_t* visits) const { visits[i] += 1; }
};
struct scaled_add { // y = a x + y
  float a;
  PLATEAU_HD void operator()(pl::index_t i, const float* x, float* y) const { y[i] = a * x[i] + y[i]; }
};
template <class T> struct convert {
  PLATEAU_HD void operator()(pl::index_t i, const float* x, T* narrow, float* back) const {
    narrow[i] = T{x[i]};
    back[i] = pl::widen(narrow[i]);
  }
};
struct log_sum_exp {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, pl::index_t r, const float* x, pl::index_t n, float* largest,
                             float* sum) const {
    const float* row = x + r * n;
    const float m = team.reduce(n, pl::lowest<float>(), pl::maximum{}, [=](pl::index_t i) { return row[i]; });
    const float s = team.reduce(n, 0.0f, pl::plus{}, [=](pl::index_t i) { return pl::exp(row[i] - m); });
    team.once([&] {
      largest[r] = m;
      sum[r] = s;
    });
  }
};
struct roots {
  template <class Team> PLATEAU_HD void operator()(Team& team, pl::index_t r, float* x, pl::index_t n) const {
    float* row = x + r * n;
    team.for_each_sqrt(
        n,
        [=](pl::index_t i) {
          row[i] += 1.0f;
          return row[i];
        },
        [=](pl::index_t i, float root) { row[i] = root; });
  }
};

std::vector<float> numbers(std::size_t n) {
  std::vector<float> out(n);
  std::uint32_t state = 99;
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-28f; // [-8, 8)
  }
  return out;
}

std::vector<pl::cpu_level> levels_here() {
  std::vector<pl::cpu_level> out;
  for (const auto level : {pl::cpu_level::baseline, pl::cpu_level::avx2, pl::cpu_level::avx512})
    if (pl::cpu_supports(level)) out.push_back(level);
  return out;
}

} // namespace

TEST_CASE("the detected level is supported, and the baseline always is") {
  CHECK(pl::cpu_supports(pl::cpu_level::baseline));
  CHECK(pl::cpu_supports(pl::detect_cpu_level()));
  CHECK(std::string(pl::cpu_level_name(pl::cpu_level::avx512)) == "avx512");
  MESSAGE("this machine: ", std::string(pl::cpu_level_name(pl::detect_cpu_level())));
}

TEST_CASE("elements: each index of the range once, none beyond it") {
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    for (const pl::index_t n : {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 1025})
      for (const pl::index_t first : {0, 3}) {
        std::vector<std::int32_t> visits(static_cast<std::size_t>(first + n) + 4, 0);
        pl::host::run_elements(level, first, first + n, count_visits{}, visits.data());
        int wrong = 0;
        for (pl::index_t i = 0; i < static_cast<pl::index_t>(visits.size()); ++i)
          wrong += visits[static_cast<std::size_t>(i)] != (i >= first && i < first + n ? 1 : 0);
        CHECK(wrong == 0);
      }
    std::vector<std::int32_t> untouched(8, 0);
    pl::host::run_elements(level, 5, 2, count_visits{}, untouched.data());
    CHECK(untouched == std::vector<std::int32_t>(8, 0));
  }
}

TEST_CASE("elements: y = a x + y within one rounding of the exact product and sum, tails as the body") {
  const std::size_t n = 1045;
  const auto x = numbers(n);
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    std::vector<float> y(n, 0.25f), pieces(n, 0.25f);
    pl::host::run_elements(level, 0, static_cast<pl::index_t>(n), scaled_add{0.3f}, x.data(), y.data());
    for (pl::index_t at = 0; at < static_cast<pl::index_t>(n); at += 7) // every element is in a tail here
      pl::host::run_elements(level, at, std::min<pl::index_t>(at + 7, static_cast<pl::index_t>(n)),
                             scaled_add{0.3f}, x.data(), pieces.data());
    CHECK(y == pieces);
    double worst = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double product = static_cast<double>(0.3f) * static_cast<double>(x[i]);
      const double scale = std::fabs(product) + 0.25;
      worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - (product + 0.25)) / scale);
    }
    CHECK(worst <= 0x1p-23);
  }
}

TEST_CASE_TEMPLATE("conversions have the same bits at every level", T, pl::bfloat16, pl::half) {
  std::vector<float> x(1 << 16);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = pl::bit_cast<float>(static_cast<std::uint32_t>(i) * 65599u);
  for (const pl::cpu_level level : levels_here()) {
    CAPTURE(std::string(pl::cpu_level_name(level)));
    std::vector<T> narrow(x.size());
    std::vector<float> back(x.size());
    pl::host::run_elements(level, 0, static_cast<pl::index_t>(x.size()), convert<T>{},
                           static_cast<const float*>(x.data()), narrow.data(), back.data());
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const volatile float single = x[i];
      const T reference{single};
      wrong += narrow[i].bits != reference.bits;
      wrong += pl::bit_cast<std::uint32_t>(back[i]) != pl::bit_cast<std::uint32_t>(pl::widen(reference));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows: log-sum-exp against double, the same bits whole and row by row") {
  constexpr pl::index_t rows = 5;
  for (const pl::cpu_level level : levels_here())
    for (const pl::index_t n : {1, 31, 32, 33, 64, 100, 1000}) {
      CAPTURE(std::string(pl::cpu_level_name(level)));
      CAPTURE(n);
      const auto x = numbers(static_cast<std::size_t>(rows * n));
      std::vector<float> largest(rows), sum(rows), largest_pieces(rows), sum_pieces(rows);
      pl::host::run_rows(level, 0, rows, log_sum_exp{}, x.data(), n, largest.data(), sum.data());
      for (pl::index_t r = 0; r < rows; ++r)
        pl::host::run_rows(level, r, r + 1, log_sum_exp{}, x.data(), n, largest_pieces.data(),
                           sum_pieces.data());
      CHECK(largest == largest_pieces);
      CHECK(sum == sum_pieces);
      for (pl::index_t r = 0; r < rows; ++r) {
        const float* row = x.data() + r * n;
        double exact_largest = static_cast<double>(row[0]), exact_sum = 0.0;
        for (pl::index_t i = 1; i < n; ++i)
          exact_largest = std::max(exact_largest, static_cast<double>(row[i]));
        for (pl::index_t i = 0; i < n; ++i)
          exact_sum += std::exp(static_cast<double>(row[i]) - exact_largest);
        CHECK(static_cast<double>(largest[static_cast<std::size_t>(r)]) == exact_largest);
        CHECK(static_cast<double>(sum[static_cast<std::size_t>(r)]) ==
              doctest::Approx(exact_sum).epsilon(1e-6));
      }
    }
}

TEST_CASE("rows: square roots are correctly rounded at every level") {
  for (const pl::cpu_level level : levels_here())
    for (const pl::index_t n : {1, 31, 32, 33, 257}) {
      CAPTURE(std::string(pl::cpu_level_name(level)));
      CAPTURE(n);
      auto x = numbers(static_cast<std::size_t>(2 * n));
      for (float& value : x) value = std::fabs(value);
      const auto before = x;
      pl::host::run_rows(level, 0, 2, roots{}, x.data(), n);
      int wrong = 0;
      for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != std::sqrt(before[i] + 1.0f);
      CHECK(wrong == 0);
    }
}
