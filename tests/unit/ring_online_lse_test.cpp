// SPDX-License-Identifier: Apache-2.0
//
// The state of a log-sum-exp against float64: any split, any order, any distance between the parts; what is
// empty, infinite or not a number; with a payload; folded by a team within a kernel.
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/ring/online_lse.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::online_lse;
using with_value = pl::online_lse_with<float>;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const float nan_value = std::numeric_limits<float>::quiet_NaN();

double exact(const std::vector<float>& z) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float v : z) largest = std::max(largest, static_cast<double>(v));
  for (const float v : z) sum += std::exp(static_cast<double>(v) - largest);
  return largest + std::log(sum);
}
online_lse fold(const std::vector<float>& z) {
  online_lse state;
  for (const float v : z) state = merge(state, online_lse::of(v));
  return state;
}
bool same(const online_lse& a, const online_lse& b) { return a.m == b.m && a.s == b.s; }

// A row of logits in a user's kernel.
struct row_lse {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> z, pl::view<online_lse> to) const {
    const float* row = z.row(r);
    const online_lse sum =
        team.reduce(z.cols, online_lse{}, pl::merge_lse{}, [=](index_t c) { return online_lse::of(row[c]); });
    team.once([=] { to[r] = sum; });
  }
};

// A payload of a user's own: what an attention sums up for a query.
struct four_values {
  float v[4] = {};

  PLATEAU_HD friend four_values operator+(const four_values& a, const four_values& b) {
    four_values out;
    for (int i = 0; i < 4; ++i) out.v[i] = a.v[i] + b.v[i];
    return out;
  }
  PLATEAU_HD friend four_values operator*(const four_values& a, float factor) {
    four_values out;
    for (int i = 0; i < 4; ++i) out.v[i] = a.v[i] * factor;
    return out;
  }
};
using attention = pl::online_lse_with<four_values>;

// What several attentions over parts of the keys gave, (out, lse) each, becomes that over all keys: in a
// user's kernel over queries.
struct join_attentions {
  index_t parts;
  PLATEAU_HD void operator()(index_t query, pl::tile<const float> lses, pl::tile<const float> outs,
                             pl::tile<float> out, pl::view<float> lse) const {
    attention all;
    for (index_t p = 0; p < parts; ++p) {
      four_values mean;
      for (index_t i = 0; i < 4; ++i) mean.v[i] = outs(query * parts + p, i);
      all = merge(all, attention::from_lse(lses(query, p), mean));
    }
    const four_values mean = all.mean();
    for (index_t i = 0; i < 4; ++i) out(query, i) = mean.v[i];
    lse[query] = all.value();
  }
};

} // namespace

TEST_CASE("parts that are merged in any order agree with float64") {
  std::mt19937 source(1);
  for (const float spread : {0.1F, 1.0F, 30.0F, 1000.0F, 1e30F})
    for (const int parts : {1, 2, 3, 8, 40}) {
      CAPTURE(spread);
      CAPTURE(parts);
      std::vector<float> z;
      std::vector<online_lse> states;
      std::normal_distribution<float> normal(0, spread);
      for (int p = 0; p < parts; ++p) {
        std::vector<float> part(source() % 5);
        for (float& v : part) v = normal(source);
        states.push_back(fold(part));
        z.insert(z.end(), part.begin(), part.end());
      }
      if (z.empty()) continue;
      const double expected = exact(z);
      for (int order = 0; order < 20; ++order) {
        std::shuffle(states.begin(), states.end(), source);
        online_lse state;
        for (const online_lse& s : states) state = merge(state, s);
        CHECK(std::fabs(static_cast<double>(state.value()) - expected) <=
              1e-6 * static_cast<double>(parts) + 1e-7 * std::fabs(expected));
        CHECK(state.m == *std::max_element(z.begin(), z.end()));
      }
      // Not only one after the other: pairs of any two, until one is left.
      std::vector<online_lse> left = states;
      while (left.size() > 1) {
        std::shuffle(left.begin(), left.end(), source);
        const online_lse both = merge(left[left.size() - 1], left[left.size() - 2]);
        left.pop_back();
        left.back() = both;
      }
      CHECK(std::fabs(static_cast<double>(left.front().value()) - expected) <=
            1e-6 * static_cast<double>(parts) + 1e-7 * std::fabs(expected));
    }
}

TEST_CASE("V16: empty sums, and parts whose sums are further apart than a float's exponent") {
  const online_lse empty, one = online_lse::of(3.0F);
  CHECK(same(merge(empty, empty), empty));
  CHECK(empty.m == pl::lowest<float>());
  CHECK(empty.s == 0);
  CHECK(same(merge(one, empty), one));
  CHECK(same(merge(empty, one), one));
  CHECK(std::isnan(empty.value()));
  const with_value nothing, both = merge(nothing, nothing), kept = merge(nothing, with_value::of(2, 5));
  CHECK(both.m == pl::lowest<float>());
  CHECK(both.s == 0);
  CHECK(both.a == 0);
  CHECK(kept.m == 2);
  CHECK(kept.s == 1);
  CHECK(kept.a == 5);

  for (const float apart : {88.0F, 89.0F, 90.0F, 104.0F, 1000.0F, 1e38F})
    for (const float at : {-1e5F, 0.0F, 100.0F}) {
      CAPTURE(apart);
      CAPTURE(at);
      const online_lse low = online_lse::from_lse(at), high = online_lse::from_lse(at + apart);
      CHECK(merge(low, high).value() == doctest::Approx(exact({at, at + apart})));
      CHECK(same(merge(low, high), merge(high, low)));
    }
  const float largest = std::numeric_limits<float>::max();
  CHECK(merge(online_lse::of(-largest), online_lse::of(largest)).value() == largest);
  CHECK(merge(online_lse::of(-largest), online_lse::of(-largest)).s == 2);
}

TEST_CASE("V14: -infinity adds nothing, all of it is NaN at the end, NaN stays NaN") {
  CHECK(fold({1.0F, -infinity, 2.0F}).value() == doctest::Approx(exact({1.0F, 2.0F})));
  CHECK(same(fold({-infinity, -infinity}), online_lse{}));
  CHECK(std::isnan(fold({-infinity, -infinity}).value()));
  CHECK(std::isnan(fold({0.0F, infinity}).value()));
  for (const float bad : {nan_value, -nan_value}) {
    CHECK(std::isnan(fold({bad}).value()));
    CHECK(std::isnan(fold({0.0F, bad, 5.0F}).value()));
    CHECK(std::isnan(merge(fold({0.0F, 1e30F}), fold({bad})).value()));
    CHECK(std::isnan(online_lse::from_lse(bad).value()));
    CHECK(std::isnan(merge(online_lse::of(100.0F), online_lse::from_lse(bad)).value()));
  }
}

TEST_CASE("the logarithm alone is a state too: also of an empty part") {
  CHECK(online_lse::from_lse(2.5F).value() == 2.5F);
  CHECK(same(online_lse::from_lse(-infinity), online_lse{}));
  CHECK(merge(online_lse::from_lse(-infinity), online_lse::of(4.0F)).value() == 4.0F);
  const std::vector<float> left{1, 2, 3}, right{4, -5};
  CHECK(merge(online_lse::from_lse(fold(left).value()), fold(right)).value() ==
        doctest::Approx(exact({1, 2, 3, 4, -5})));
}

TEST_CASE("a payload is weighted with the exponentials") {
  const std::vector<float> z{1, 95, -3, 94.5F}, v{2, -1, 4, 0.5F};
  double sum = 0, weighted = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    sum += std::exp(static_cast<double>(z[i]) - 95);
    weighted += std::exp(static_cast<double>(z[i]) - 95) * static_cast<double>(v[i]);
  }
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    with_value state;
    for (const std::size_t i : order) state = merge(state, with_value::of(z[i], v[i]));
    CHECK(static_cast<double>(state.mean()) == doctest::Approx(weighted / sum));
    CHECK(static_cast<double>(state.value()) == doctest::Approx(exact(z)));
  } while (std::next_permutation(order.begin(), order.end()));
  // An attention's (out, lse) joins; that of an empty part does not, whatever its output.
  const with_value part = merge(with_value::of(1, 2), with_value::of(95, -1));
  const with_value whole = merge(with_value::from_lse(part.value(), part.mean()),
                                 merge(with_value::of(-3, 4), with_value::of(94.5F, 0.5F)));
  CHECK(static_cast<double>(whole.mean()) == doctest::Approx(weighted / sum));
  const with_value same_again = merge(whole, with_value::from_lse(-infinity, nan_value));
  CHECK(same_again.a == whole.a);
  CHECK(std::isnan(with_value{}.mean()));
}

TEST_CASE("a user's kernel folds states with its team, at every level of vectors") {
  for (const auto level : support::cpu_levels())
    for (const index_t n : {1, 31, 32, 33, 65, 1000}) {
      const index_t count = 4;
      auto values = support::random_values<float>(count * n, static_cast<std::uint64_t>(n), 50);
      values[static_cast<std::size_t>(n)] = nan_value; // in the second row
      support::matrix<float> z(count, n, values);
      std::vector<online_lse> states(static_cast<std::size_t>(count));
      support::run_rows(level, count, row_lse{}, std::as_const(z).in(), support::all(states));
      for (index_t r = 0; r < count; ++r) {
        const std::vector<float> row(z.in().row(r), z.in().row(r) + n);
        if (r == 1)
          CHECK(std::isnan(states[1].value()));
        else
          CHECK(static_cast<double>(states[static_cast<std::size_t>(r)].value()) ==
                doctest::Approx(exact(row)).epsilon(1e-6));
      }
    }
}

TEST_CASE(
    "attentions over parts of the keys join in a user's kernel, from (out, lse) alone; parts may be empty") {
  const index_t queries = 9, parts = 4, keys = 6; // keys: of a part
  const auto z = support::random_values<float>(queries * parts * keys, 1, 40),
             v = support::random_values<float>(queries * parts * keys * 4, 2);
  std::vector<float> lses, outs, expected, expected_lses;
  for (index_t q = 0; q < queries; ++q) {
    double sums[4] = {}, all = 0, largest = -1e30;
    for (index_t k = 0; k < parts * keys; ++k)
      if (k / keys != q % parts)
        largest = std::max(largest, static_cast<double>(z[static_cast<std::size_t>(q * parts * keys + k)]));
    for (index_t p = 0; p < parts; ++p) {
      double sum = 0, mean[4] = {}, most = -1e30;
      const auto at = [&](index_t k) { return static_cast<std::size_t>((q * parts + p) * keys + k); };
      for (index_t k = 0; k < keys; ++k) most = std::max(most, static_cast<double>(z[at(k)]));
      for (index_t k = 0; k < keys; ++k) {
        const double e = std::exp(static_cast<double>(z[at(k)]) - most);
        sum += e;
        for (std::size_t i = 0; i < 4; ++i) mean[i] += e * static_cast<double>(v[at(k) * 4 + i]);
      }
      const bool empty = p == q % parts; // of which nothing is known but that
      lses.push_back(empty ? -infinity : static_cast<float>(most + std::log(sum)));
      for (const double m : mean) outs.push_back(empty ? nan_value : static_cast<float>(m / sum));
      if (empty) continue;
      all += sum * std::exp(most - largest);
      for (std::size_t i = 0; i < 4; ++i) sums[i] += mean[i] * std::exp(most - largest);
    }
    for (const double s : sums) expected.push_back(static_cast<float>(s / all));
    expected_lses.push_back(static_cast<float>(largest + std::log(all)));
  }
  for (const auto level : support::cpu_levels()) {
    const support::matrix<float> of_parts(queries, parts, lses), means(queries * parts, 4, outs);
    support::matrix<float> joined(queries, 4);
    std::vector<float> lse(static_cast<std::size_t>(queries));
    support::run_elements(level, queries, join_attentions{parts}, of_parts.in(), means.in(), joined.out(),
                          support::all(lse));
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(joined.values()[i] == doctest::Approx(static_cast<double>(expected[i])).epsilon(2e-5));
    for (std::size_t q = 0; q < lse.size(); ++q)
      CHECK(lse[q] == doctest::Approx(static_cast<double>(expected_lses[q])).epsilon(1e-6));
  }
}
