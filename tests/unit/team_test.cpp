// SPDX-License-Identifier: Apache-2.0
//
// The team of one: what it visits, the order it sums in, and how much closer that is to exact than a plain
// sum.
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pl = plateau;

namespace {

constexpr pl::index_t lengths[] = {0,  1,  2,  15, 16, 17,  31,  32,  33,  63,
                                   64, 65, 95, 96, 97, 127, 128, 129, 1000};

std::vector<float> numbers(pl::index_t n, std::uint32_t seed) {
  std::vector<float> out(static_cast<std::size_t>(n));
  std::uint32_t state = seed;
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) * 0x1p-24f;
  }
  return out;
}

} // namespace

TEST_CASE("for_each and for_each_sqrt visit each index once") {
  const pl::serial_team team;
  for (const pl::index_t n : lengths) {
    CAPTURE(n);
    std::vector<int> visits(static_cast<std::size_t>(n) + 1, 0);
    int* count = visits.data();
    team.for_each(n, [=](pl::index_t i) { ++count[i]; });
    for (pl::index_t i = 0; i < n; ++i) CHECK(count[i] == 1);
    CHECK(count[n] == 0);

    std::vector<float> square(static_cast<std::size_t>(n) + 1, -1.0f),
        root(static_cast<std::size_t>(n) + 1, -1.0f);
    float *squares = square.data(), *roots = root.data();
    team.for_each_sqrt(
        n,
        [=](pl::index_t i) {
          squares[i] = static_cast<float>(i) + 0.5f;
          return squares[i];
        },
        [=](pl::index_t i, float r) { roots[i] = r + squares[i]; }); // reads what the first function wrote
    for (pl::index_t i = 0; i < n; ++i)
      CHECK(roots[i] == std::sqrt(static_cast<float>(i) + 0.5f) + squares[i]);
    CHECK(roots[n] == -1.0f);
  }
}

TEST_CASE("reduce joins 32 lanes by a tree, in this order exactly") {
  const pl::serial_team team;
  for (const pl::index_t n : lengths) {
    CAPTURE(n);
    const auto x = numbers(n, 7);
    const float* data = x.data();
    const float got = team.reduce(n, 0.0f, pl::plus{}, [=](pl::index_t i) { return data[i]; });

    std::vector<float> lanes(32, 0.0f);
    for (std::size_t i = 0; i < x.size(); ++i) lanes[i % 32] += x[i];
    for (std::size_t width = 16; width > 0; width /= 2)
      for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    CHECK(got == lanes[0]);
  }
}

TEST_CASE("reduce: maxima, identities, integers, other value types") {
  const pl::serial_team team;
  for (const pl::index_t n : lengths) {
    CAPTURE(n);
    const auto sum = team.reduce(n, std::int64_t{0}, pl::plus{}, [](pl::index_t i) { return i; });
    CHECK(sum == n * (n - 1) / 2);
    const float largest =
        team.reduce(n, -5.0f, pl::maximum{}, [=](pl::index_t i) { return i == n - 1 ? 3.0f : -10.0f; });
    CHECK(largest == (n > 0 ? 3.0f : -5.0f));
  }

  struct place { // value and index: the first of the largest
    float value;
    std::int32_t at;
  };
  const auto first_largest = [](const place& a, const place& b) {
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
  };
  const auto found = team.reduce(100, place{-1.0f, 1 << 30}, first_largest, [](pl::index_t i) {
    return place{i == 40 || i == 41 || i == 77 ? 9.0f : 0.0f, static_cast<std::int32_t>(i)};
  });
  CHECK(found.at == 40);

  // The value type is that of the identity: a bfloat16 source sums in float.
  const float wide = team.reduce(512, 0.0f, pl::plus{}, [](pl::index_t) { return pl::bfloat16{1.0f}; });
  CHECK(wide == 512.0f);
}

TEST_CASE("maximum passes over a NaN on the right") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(pl::maximum{}(2.0f, nan) == 2.0f);
  CHECK(pl::maximum{}(2, 3) == 3);
  CHECK(pl::plus{}(2, 3) == 5);
}

TEST_CASE("a long sum is at least ten times closer to exact than a plain one") {
  const pl::serial_team team;
  double lanes_error = 0.0, plain_error = 0.0;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    const auto x = numbers(1 << 17, seed);
    const float* data = x.data();
    double exact = 0.0;
    float plain = 0.0f;
    for (const float value : x) {
      exact += static_cast<double>(value);
      plain += value;
    }
    const float sum = team.reduce(static_cast<pl::index_t>(x.size()), 0.0f, pl::plus{},
                                  [=](pl::index_t i) { return data[i]; });
    lanes_error += std::pow(static_cast<double>(sum) - exact, 2);
    plain_error += std::pow(static_cast<double>(plain) - exact, 2);
  }
  CHECK(std::sqrt(lanes_error) * 10 < std::sqrt(plain_error));
}

TEST_CASE("once runs once") {
  const pl::serial_team team;
  int runs = 0;
  team.once([&] { ++runs; });
  CHECK(runs == 1);
  static_assert(pl::serial_team::size() == 1 && pl::serial_team::rank() == 0);
}
