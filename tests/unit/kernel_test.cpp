// SPDX-License-Identifier: Apache-2.0
//
// The check of a launch lets through what is right; what it refuses is in tests/fail.
#include <plateau/kernel.hpp>

#include <doctest/doctest.h>

#include <array>
#include <type_traits>

namespace {

namespace pl = plateau;
using pl::index_t;

struct axpy {
  void operator()(index_t i, pl::view<const float> x, float a, pl::view<float> y) const { y[i] += a * x[i]; }
};

struct row_sum {
  template <class Team>
  void operator()(Team& team, index_t row, pl::tile<const int> x, pl::view<int> sums,
                  pl::view<int> total) const {
    const int sum = team.reduce(x.cols, 0, pl::plus{}, [&](index_t j) { return x(row, j); });
    team.once([&] {
      sums[row] = sum;
      total[0] += sum;
    });
  }
};

struct machine;

// As a backend begins its launch.
template <class Grid, class Kernel, class... Args>
void run(Grid grid, const Kernel& kernel, const Args&... args) {
  pl::check_kernel<machine, Grid, Kernel, Args...>();
  pl::check_grid(grid);
  if constexpr (std::is_same_v<Grid, pl::rows>) {
    pl::serial_team team;
    for (index_t row = 0; row < grid.n; ++row) kernel(team, row, pl::unwrap(args)...);
  } else {
    for (index_t i = 0; i < grid.n; ++i) kernel(i, pl::unwrap(args)...);
  }
}

TEST_CASE("an element kernel gets its index, views as tagged, and plain values") {
  std::array<float, 3> x{1, 2, 3}, y{10, 20, 30};
  run(pl::elements{3}, axpy{}, pl::in(pl::view<float>{x.data(), 3}), 2.0f,
      pl::inout(pl::view<float>{y.data(), 3}));
  CHECK(y == std::array<float, 3>{12, 24, 36});
}

TEST_CASE("a row kernel gets its team first, and may be a template over it") {
  std::array<int, 6> x{1, 2, 3, 4, 5, 6};
  std::array<int, 2> sums{};
  int total = 100;
  run(pl::rows{2}, row_sum{}, pl::in(pl::tile<int>{x.data(), 2, 3, 3}),
      pl::out(pl::view<int>{sums.data(), 2}), pl::accumulates(pl::view<int>{&total, 1}));
  CHECK(sums == std::array<int, 2>{6, 15});
  CHECK(total == 121);
}

TEST_CASE("grids of nothing run nothing") {
  run(pl::elements{0}, axpy{}, pl::in(pl::view<float>{}), 1.0f, pl::inout(pl::view<float>{}));
  run(pl::rows{}, row_sum{}, pl::in(pl::tile<int>{}), pl::out(pl::view<int>{}),
      pl::accumulates(pl::view<int>{}));
  CHECK(pl::elements{}.n == 0);
}

TEST_CASE("on the host a lambda that captures plain values is a kernel too") {
  int offset = 5;
  std::array<int, 2> v{};
  run(
      pl::elements{2}, [offset](index_t i, pl::view<int> to) { to[i] = static_cast<int>(i) + offset; },
      pl::out(pl::view<int>{v.data(), 2}));
  CHECK(v == std::array<int, 2>{5, 6});
}

} // namespace
