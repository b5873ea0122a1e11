// SPDX-License-Identifier: Apache-2.0
//
// The elementary functions where the compiler may reassociate: clang, which compiles this file with
// -funsafe-math-optimizations, defines no macro that config.hpp could refuse, so the functions forbid it
// themselves. GCC compiles it as any other.
#include <plateau/math.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace {

namespace pl = plateau;

TEST_CASE("the functions keep their bounds under reassociation") {
  for (float x = 0.01f; x < 80.0f; x *= 1.07f) {
    CAPTURE(x);
    const double wide = static_cast<double>(x);
    CHECK(static_cast<double>(pl::exp(x)) == doctest::Approx(std::exp(wide)).epsilon(3e-7));
    CHECK(static_cast<double>(pl::exp(-x)) == doctest::Approx(std::exp(-wide)).epsilon(3e-7));
    CHECK(static_cast<double>(pl::sqrt(x)) == doctest::Approx(std::sqrt(wide)).epsilon(3e-7));
    CHECK(static_cast<double>(pl::rsqrt(x)) == doctest::Approx(1 / std::sqrt(wide)).epsilon(3e-7));
  }
}

} // namespace
