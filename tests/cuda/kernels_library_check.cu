// SPDX-License-Identifier: Apache-2.0
//
// The library's own element kernels and elementary functions on a GPU, against float64. There exp and the
// roots are CUDA's; the bounds are those of docs/numerics.md all the same. Column sums, scans and groupings
// are part of the backend contract.
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/kernels.hpp>
#include <plateau/math.hpp>
#include <plateau/rank_order_sum.hpp>
#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::index_t; // CUDA has a half of its own
using namespace support;

namespace {

constexpr auto level = pl::cpu_level::baseline;

struct take_exp {
  PLATEAU_HD void operator()(index_t i, pl::view<const float> x, pl::view<float> y) const {
    y[i] = pl::exp(x[i]);
  }
};
struct take_sqrt {
  PLATEAU_HD void operator()(index_t i, pl::view<const float> x, pl::view<float> y) const {
    y[i] = pl::sqrt(x[i]);
  }
};
struct take_rsqrt {
  PLATEAU_HD void operator()(index_t i, pl::view<const float> x, pl::view<float> y) const {
    y[i] = pl::rsqrt(x[i]);
  }
};

struct errors {
  double worst_ulp = 0;           // where the exact result is a normal float
  double worst_below_normal = 0;  // absolute
  std::int64_t wrong_special = 0; // NaN and infinity
};

// Over all patterns of bits, a prime stride apart.
template <class Kernel, class Exact> errors sweep(Exact exact) {
  constexpr std::uint32_t stride = 4001;
  constexpr index_t block = 1 << 18;
  std::vector<float> x(block), y(block);
  errors out;
  std::uint64_t pattern = 0;
  while (pattern < (std::uint64_t{1} << 32)) {
    for (float& each : x) {
      each = pl::bit_cast<float>(static_cast<std::uint32_t>(pattern)); // behind the last one: again from 0
      pattern += stride;
    }
    run_elements(level, block, Kernel{}, all(std::as_const(x)), all(y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = exact(static_cast<double>(x[i])), got = static_cast<double>(y[i]);
      if (std::isnan(want))
        out.wrong_special += !std::isnan(got);
      else if (std::fabs(want) > static_cast<double>(std::numeric_limits<float>::max()))
        out.wrong_special += !(std::isinf(got) && (got > 0) == (want > 0));
      else if (std::isnan(got) || std::isinf(got))
        ++out.wrong_special;
      else if (std::fabs(want) < 0x1p-126)
        out.worst_below_normal = std::max(out.worst_below_normal, std::fabs(want - got));
      else
        out.worst_ulp = std::max(out.worst_ulp, std::fabs(want - got) / unit_in_last_place<float>(want));
    }
  }
  return out;
}

} // namespace

TEST_CASE("exp: 2 ulp where normal, 2^-126 below") {
  const errors found = sweep<take_exp>([](double x) { return std::exp(x); });
  CHECK(found.worst_ulp <= 2);
  CHECK(found.worst_below_normal <= 0x1p-126);
  CHECK(found.wrong_special == 0);
}
TEST_CASE("sqrt: 1 ulp, and rsqrt: 2 ulp, subnormals included") {
  const errors root = sweep<take_sqrt>([](double x) { return std::sqrt(x); });
  CHECK(root.worst_ulp <= 1);
  CHECK(root.wrong_special == 0);
  const errors inverse = sweep<take_rsqrt>([](double x) { return x == 0 ? HUGE_VAL : 1 / std::sqrt(x); });
  CHECK(inverse.worst_ulp <= 2);
  CHECK(inverse.wrong_special == 0);
}

TEST_CASE_TEMPLATE("fill, convert, add, scale and sums in rank order", T, float, bfloat16, pl::half) {
  for (const index_t n : {0, 1, 31, 255, 256, 257, 5000}) {
    CAPTURE(n);
    const auto a = random_values<T>(n, 1), b = random_values<T>(n, 2), c = random_values<T>(n, 3);
    const auto wide = random_values<float>(n, 4);
    std::vector<T> to(a.size());
    run_elements(level, n, pl::fill<T>{static_cast<T>(1.5F)}, all(to));
    CHECK(same_bits(to, std::vector<T>(a.size(), static_cast<T>(1.5F))));
    run_elements(level, n, pl::convert{}, all(wide), all(to));
    CHECK(same_bits(to, rounded<T>(widened(wide))));
    std::vector<float> back(a.size());
    run_elements(level, n, pl::convert{}, all(a), all(back));
    CHECK(same_bits(back, rounded<float>(widened(a))));

    reference::vec sum, three, scaled, sum_with_wide;
    const auto value = [](auto narrow) { return static_cast<double>(static_cast<float>(narrow)); };
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum.push_back(value(a[i]) + value(b[i]));
      three.push_back(value(a[i]) + value(b[i]) + value(c[i]));
      scaled.push_back(value(a[i]) * value(0.7F));
      sum_with_wide.push_back(value(a[i]) + value(wide[i]));
    }
    to = a;
    run_elements(level, n, pl::add{}, all(b), all(to));
    check_accurate(to, sum);
    to = a;
    run_elements(level, n, pl::add{}, all(wide), all(to));
    check_accurate(to, sum_with_wide);
    to = a;
    run_elements(level, n, pl::scale{0.7F}, all(to));
    check_accurate(to, scaled);
    run_elements(level, n, pl::detail::sum_two{}, all(a), all(b), all(to));
    check_accurate(to, sum);
    run_elements(level, n, pl::detail::sum_three{}, all(a), all(b), all(c), all(to));
    check_accurate(to, three, 2); // two roundings in fp32
    to = b;
    run_elements(level, n, pl::detail::sum_two{}, all(a), all(std::as_const(to)), all(to)); // in place
    check_accurate(to, sum);
  }
}
