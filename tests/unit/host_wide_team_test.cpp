// SPDX-License-Identifier: Apache-2.0
//
// The team of eight threads: right kernels give serial_team's bits, members that part ways or throw end with
// the cause, and (under the thread sanitizer) a right kernel is silent.
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/wide_team.hpp>
#include <plateau/math.hpp>
#include <plateau/team.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;

namespace {

// Every team operation, each depending on what the one before it left in memory.
struct normalise_row {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, pl::index_t r, const float* x, float* y, float* norm,
                             pl::index_t n) const {
    const float* row = x + r * n;
    float* out = y + r * n;
    const float largest =
        team.reduce(n, pl::lowest<float>(), pl::maximum{}, [=](pl::index_t i) { return row[i]; });
    team.for_each(n, [=](pl::index_t i) { out[i] = pl::exp(row[i] - largest); });
    // Reads mirrored elements, which other members wrote.
    const float sum = team.reduce(n, 0.0f, pl::plus{}, [=](pl::index_t i) { return out[n - 1 - i]; });
    team.once([=] { norm[r] = sum; });
    team.for_each_sqrt(
        n, [=](pl::index_t i) { return out[i] / norm[r]; },
        [=](pl::index_t i, float root) { out[i] = root; });
  }
};

struct moments { // a reduction of a struct
  double sum;
  std::int32_t count;
  float largest;
};
struct add_moments {
  PLATEAU_HD moments operator()(const moments& a, const moments& b) const {
    return {a.sum + b.sum, a.count + b.count, a.largest < b.largest ? b.largest : a.largest};
  }
};
struct gather_moments {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, pl::index_t r, const float* x, moments* out, pl::index_t n) const {
    const float* row = x + r * n;
    const moments all =
        team.reduce(n, moments{0.0, 0, pl::lowest<float>()}, add_moments{}, [=](pl::index_t i) {
          return moments{row[i], 1, row[i]};
        });
    team.once([=] { out[r] = all; });
  }
};

// Each member keeps its own copy of a reduction: all get the result.
struct keep_everyones_result {
  template <class Team> void operator()(Team& team, pl::index_t, std::int64_t* results) const {
    const auto sum = team.reduce(100, std::int64_t{0}, pl::plus{}, [](pl::index_t i) { return i; });
    results[team.rank()] = sum;
  }
};

struct part_ways {
  template <class Team> void operator()(Team& team, pl::index_t) const {
    if (team.rank() == 3)
      team.for_each(5, [](pl::index_t) {});
    else
      team.once([] {});
  }
};
struct leave_early {
  template <class Team> void operator()(Team& team, pl::index_t) const {
    if (team.rank() == 3) return;
    team.reduce(1, 0, pl::plus{}, [](pl::index_t) { return 0; });
  }
};
struct throw_in_one {
  template <class Team> void operator()(Team& team, pl::index_t row) const {
    team.for_each(8, [&](pl::index_t i) {
      if (row == 1 && i == 5) throw std::out_of_range("element 5 of row 1");
    });
  }
};
struct square_element {
  PLATEAU_HD void operator()(pl::index_t i, float* x) const { x[i] = x[i] * x[i]; }
};

std::vector<float> numbers(pl::index_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  std::uint32_t state = 12345;
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-29f;
  }
  return out;
}

} // namespace

TEST_CASE("a right kernel gives the bits of the serial team, tails included") {
  constexpr pl::index_t rows = 3;
  for (const pl::index_t n : {1, 3, 31, 32, 33, 63, 64, 65, 100, 257}) {
    CAPTURE(n);
    const auto x = numbers(rows * n);
    std::vector<float> y_serial(x.size()), y_wide(x.size()), norm_serial(rows), norm_wide(rows);
    pl::host::run_rows(pl::cpu_level::baseline, 0, rows, normalise_row{}, x.data(), y_serial.data(),
                       norm_serial.data(), n);
    pl::host::run_rows_wide(0, rows, normalise_row{}, x.data(), y_wide.data(), norm_wide.data(), n);
    CHECK(norm_serial == norm_wide);
    CHECK(y_serial == y_wide);

    std::vector<moments> m_serial(rows), m_wide(rows);
    pl::host::run_rows(pl::cpu_level::baseline, 0, rows, gather_moments{}, x.data(), m_serial.data(), n);
    pl::host::run_rows_wide(0, rows, gather_moments{}, x.data(), m_wide.data(), n);
    for (std::size_t r = 0; r < rows; ++r) {
      CHECK(m_serial[r].sum == m_wide[r].sum);
      CHECK(m_wide[r].count == n);
      CHECK(m_serial[r].largest == m_wide[r].largest);
    }
  }
}

TEST_CASE("every member gets the result of a reduction") {
  std::vector<std::int64_t> results(static_cast<std::size_t>(pl::wide_team_size), -1);
  pl::host::run_rows_wide(0, 1, keep_everyones_result{}, results.data());
  for (const std::int64_t result : results) CHECK(result == 4950);
}

TEST_CASE("no rows, and rows of no elements") {
  pl::host::run_rows_wide(4, 4, throw_in_one{});
  pl::host::run_rows_wide(4, 2, throw_in_one{});
  float norm = -1.0f;
  pl::host::run_rows_wide(0, 1, normalise_row{}, static_cast<const float*>(nullptr),
                          static_cast<float*>(nullptr), &norm, pl::index_t{0});
  CHECK(norm == 0.0f);
}

TEST_CASE("members that make different calls are an error that names both, not a hang") {
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::string message;
    try {
      pl::host::run_rows_wide(0, 1, part_ways{});
    } catch (const std::logic_error& e) {
      message = e.what();
    }
    CHECK(message.find("different calls") != std::string::npos);
    CHECK(message.find("for_each of n = 5") != std::string::npos);
    CHECK(message.find("once") != std::string::npos);
    CHECK_THROWS_AS(pl::host::run_rows_wide(0, 1, leave_early{}), std::logic_error);
  }
}

TEST_CASE("what one member throws ends the others and reaches the caller") {
  CHECK_THROWS_WITH_AS(pl::host::run_rows_wide(0, 3, throw_in_one{}), "element 5 of row 1",
                       std::out_of_range);
}

TEST_CASE("the runner takes both grids") {
  const pl::host::wide_runner run;
  std::vector<float> x{3.0f, 4.0f, 5.0f};
  run(pl::elements{2}, square_element{}, x.data());
  CHECK(x == std::vector<float>{9.0f, 16.0f, 5.0f});
  std::vector<moments> all(1);
  run(pl::rows{1}, gather_moments{}, x.data(), all.data(), pl::index_t{3});
  CHECK(all[0].sum == 30.0);
}

TEST_CASE("element kernels over threads") {
  std::vector<float> x(100);
  std::iota(x.begin(), x.end(), 0.0f);
  pl::host::run_elements_wide(10, 90, square_element{}, x.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto plain = static_cast<float>(i);
    CHECK(x[i] == (i >= 10 && i < 90 ? plain * plain : plain));
  }
}
