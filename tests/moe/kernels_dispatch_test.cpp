// SPDX-License-Identifier: Apache-2.0
//
// Rows to experts and back: copies bit for bit, sums over slots against float64 for every top_k that has a
// loop of its own and some that have not, and the same bits however the routes were grouped.

#include "kernels/dispatch.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

using plateau::bfloat16, plateau::index_t; // CUDA has a half of its own
using namespace support;

namespace {

// Routes in an arbitrary order of travel, with the inverse.
struct travel {
  std::vector<std::int32_t> order, position;

  travel(index_t routes, std::uint64_t seed)
      : order(static_cast<std::size_t>(routes)), position(order.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 engine(seed);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[engine() % i]);
    run_elements(plateau::cpu_level::baseline, routes, moe::invert{}, all(std::as_const(order)),
                 all(position));
  }
};

constexpr index_t every_k[] = {1, 2, 3, 4, 5, 6, 8, 16};
constexpr index_t every_hidden[] = {1, 2, 31, 33, 64, 101};

} // namespace

TEST_CASE("the inverse of an order says where each route lies") {
  for (const index_t n : {0, 1, 2, 31, 33, 1000}) {
    const travel t(n, static_cast<std::uint64_t>(n));
    for (index_t i = 0; i < n; ++i) REQUIRE(t.position[static_cast<std::size_t>(t.order[i])] == i);
  }
}

TEST_CASE_TEMPLATE("gathered rows are copies, bit for bit", T, float, bfloat16, plateau::half) {
  const index_t n = 4, hidden = 45, k = 3;
  std::vector<T> x(static_cast<std::size_t>(n * hidden));
  std::mt19937_64 engine(1); // every pattern of bits, NaNs among them
  for (std::size_t i = 0; i < x.size() * sizeof(T); ++i)
    reinterpret_cast<unsigned char*>(x.data())[i] = static_cast<unsigned char>(engine());
  const matrix<T> from(n, hidden, x);
  const travel t(n * k, 2);
  for (const auto level : cpu_levels()) {
    matrix<T> to(n * k, hidden);
    run_rows(level, n * k, moe::gather_rows{static_cast<int>(k)}, all(t.order), from.in(), to.out());
    CHECK(to.spare_untouched());
    for (index_t i = 0; i < n * k; ++i)
      REQUIRE(std::memcmp(&to.at(i, 0), from.in().row(t.order[i] / k), hidden * sizeof(T)) == 0);
  }
}

TEST_CASE_TEMPLATE("scaled rows and all sums over slots agree with float64", T, float, bfloat16) {
  const index_t n = 3;
  for (const auto level : cpu_levels())
    for (const index_t k : every_k)
      for (const index_t hidden : every_hidden) {
        const std::string name = plateau::cpu_level_name(level);
        CAPTURE(name);
        CAPTURE(k);
        CAPTURE(hidden);
        const index_t routes = n * k;
        const travel t(routes, static_cast<std::uint64_t>(k));
        const auto x = random_values<T>(n * hidden, 1), base = random_values<T>(n * hidden, 2);
        const auto gate = random_values<float>(routes, 3),
                   from_experts = random_values<float>(routes * hidden, 4);
        const auto back = rounded<T>(widened(from_experts));
        const matrix<T> rows(n, hidden, x), returned(routes, hidden, back);
        const matrix<float> gates(n, k, gate);
        const auto returned_at = [&](index_t route, index_t c) {
          return static_cast<double>(
              static_cast<float>(back[static_cast<std::size_t>(t.position[route] * hidden + c)]));
        };

        matrix<T> scaled(routes, hidden);
        run_rows(level, routes, moe::gather_scaled_rows{static_cast<int>(k)}, all(t.order), gates.in(),
                 rows.in(), scaled.out());
        reference::vec expected;
        for (index_t i = 0; i < routes; ++i)
          for (index_t c = 0; c < hidden; ++c)
            expected.push_back(static_cast<double>(gate[t.order[i]]) *
                               static_cast<double>(static_cast<float>(x[t.order[i] / k * hidden + c])));
        check_accurate(scaled.values(), expected);

        matrix<T> out(n, hidden, base), sums(n, hidden);
        run_rows(level, n, moe::combine{}, all(t.position), gates.in(), returned.in(), out.out());
        run_rows(level, n, moe::combine_gradients{}, all(t.position), k, returned.in(), sums.out());
        matrix<float> dgates(n, k);
        run_rows(level, n, moe::gate_gradients{}, all(t.position), rows.in(), returned.in(), dgates.out());
        reference::vec expected_out = widened(base), expected_sums = reference::zeros(n * hidden),
                       expected_dgates = reference::zeros(routes);
        for (index_t token = 0; token < n; ++token)
          for (index_t j = 0; j < k; ++j)
            for (index_t c = 0; c < hidden; ++c) {
              const double value = returned_at(token * k + j, c);
              expected_out[token * hidden + c] += static_cast<double>(gate[token * k + j]) * value;
              expected_sums[token * hidden + c] += value;
              expected_dgates[token * k + j] +=
                  static_cast<double>(static_cast<float>(x[token * hidden + c])) * value;
            }
        const double slack = std::is_same_v<T, float> ? 2 : 1;
        check_accurate(out.values(), expected_out, slack);
        check_accurate(sums.values(), expected_sums, slack);
        check_accurate(dgates.values(), expected_dgates, 2);
        CHECK(scaled.spare_untouched());
        CHECK(out.spare_untouched());
        CHECK(sums.spare_untouched());
        CHECK(dgates.spare_untouched());

        // Another order of travel: the same rows lie elsewhere, and nothing else changes.
        const travel other(routes, 99);
        std::vector<T> moved(back.size());
        for (index_t r = 0; r < routes; ++r)
          std::copy_n(back.begin() + t.position[r] * hidden, hidden,
                      moved.begin() + other.position[r] * hidden);
        const matrix<T> returned_other(routes, hidden, moved);
        matrix<T> out_other(n, hidden, base);
        run_rows(level, n, moe::combine{}, all(other.position), gates.in(), returned_other.in(),
                 out_other.out());
        CHECK(same_bits(out_other.values(), out.values()));
      }
}

TEST_CASE("routes are counted on top of what was there") {
  const std::vector<std::int64_t> offsets{0, 3, 3, 10, 16777226};
  std::vector<float> counts{1, 2, 3, 0};
  run_rows(plateau::cpu_level::baseline, 4, moe::count_routes{}, all(offsets), all(counts));
  CHECK(counts == std::vector<float>{4, 2, 10, 16777216});
}
