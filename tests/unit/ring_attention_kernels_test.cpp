// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a ring attention against float64, a tile at a time, at every level of vectors and by a wide
// team: rows that see all, some and none of the keys, hidden ones too.
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/ring/attention_kernels.hpp>
#include <plateau/ring/attention_row_kernels.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::index_t, pl::online_lse, pl::tile, pl::tile_batch;
using namespace support;

namespace {

// Five positions of two key heads with three query heads each, 23 keys, which begin in the middle of the
// documents [3, 30), [30, 31), [31, 60).
struct rig {
  static constexpr index_t positions = 5, group = 3, heads = 6, batches = 2, rows = positions * group,
                           keys = 67, size = 37;
  pl::attention_tile_mask mask;
  std::vector<float> scores, dshares;
  std::vector<unsigned char> hidden;
  pl::attention_rows where{group};

  rig(bool causal, bool hides, std::uint64_t seed) {
    mask.queries = {28, positions};
    mask.keys = {10, keys};
    mask.causal = causal;
    mask.documents = 3;
    const index_t begins[] = {13, 30, 31, 60};
    std::copy(std::begin(begins), std::end(begins), mask.begins);
    scores = random_values<float>(batches * rows * keys, seed, 8.0);
    for (float& z : scores) z = std::round(z * 64) / 64; // what is left of it at any maximum here is exact
    dshares = random_values<float>(batches * rows * keys, seed + 1);
    if (hides)
      for (index_t j = 0; j < keys; ++j) hidden.push_back(j == 20 || j % 3 == 0 ? 1 : 0);
  }
  // Position 30 is alone in its document; hidden, with key 30 in column 20, it sees nothing.
  bool sees(index_t row, index_t j) const {
    const index_t q = 28 + row % rows / group, k = 10 + j;
    const auto document = [](index_t p) { return p < 13 ? 0 : p < 30 ? 1 : p < 31 ? 2 : p < 60 ? 3 : 4; };
    if (!hidden.empty() && hidden[static_cast<std::size_t>(j)] != 0) return false;
    return document(q) == document(k) && (!mask.causal || k <= q);
  }
  // Of (positions, heads).
  static std::size_t place(index_t row) {
    const index_t b = row / rows, i = row % rows;
    return static_cast<std::size_t>(i / group * heads + b * group + i % group);
  }
  double score(index_t row, index_t j) const {
    return static_cast<double>(scores[static_cast<std::size_t>(row * keys + j)]);
  }
  template <class E> static tile_batch<E> batch(std::vector<E>& v, index_t cols) {
    return {v.data(), batches, rows * cols, rows, cols, cols};
  }
};

} // namespace

TEST_CASE("which keys a query of a tile sees") {
  for (const bool causal : {true, false}) {
    const rig r(causal, false, 1);
    for (index_t row = 0; row < r.rows; ++row) {
      const pl::attention_columns seen = r.mask.seen(row / r.group);
      for (index_t j = 0; j < r.keys; ++j) CHECK((j >= seen.first && j < seen.end) == r.sees(row, j));
    }
  }
  pl::attention_tile_mask m;
  m.queries = {10, 4}, m.keys = {4, 6}, m.documents = 1, m.begins[1] = 40;
  CHECK(m.whole());
  m.keys = {4, 8};
  CHECK_FALSE(m.whole());
  m.causal = false;
  CHECK(m.whole());
  m.begins[0] = 5;
  CHECK_FALSE(m.whole());
}

TEST_CASE_TEMPLATE("folds: shares, states, and what was summed before at the new maximum", T, float,
                   bfloat16) {
  for (const pl::cpu_level level : cpu_levels())
    for (int i = 0; i < 8; ++i) {
      CAPTURE(static_cast<int>(level));
      CAPTURE(i);
      const bool first = (i & 4) != 0;
      rig r((i & 1) == 0, (i & 2) != 0, static_cast<std::uint64_t>(i));
      const index_t all = r.rows * r.batches;
      auto sums = random_values<float>(all * r.size, 9);
      const auto sums_before = sums;
      std::vector<online_lse> states(static_cast<std::size_t>(all)), before;
      for (index_t row = 0; row < all; ++row)
        if (row % 2 == 0)
          states[static_cast<std::size_t>(row)] = online_lse::of(static_cast<float>(row % 8) * 4);
      before = states;
      auto scores = r.scores;
      std::vector<T> shares(scores.size());
      const pl::attention_fold fold{r.mask, r.where, first};
      const auto hidden = support::all(std::as_const(r.hidden));
      const tile_batch<const float> z = r.batch(scores, r.keys);
      if constexpr (std::is_same_v<T, float>) {
        run_rows(level, all, fold, r.batch(scores, r.keys), hidden, support::all(states),
                 r.batch(sums, r.size));
        shares = scores;
      } else {
        run_rows(level, all, fold, z, hidden, r.batch(shares, r.keys), support::all(states),
                 r.batch(sums, r.size));
      }
      std::vector<double> expected_shares, expected_sums, expected_s;
      std::vector<float> found_s;
      for (index_t row = 0; row < all; ++row) {
        const auto at = static_cast<std::size_t>(row);
        const online_lse was = first ? online_lse{} : before[at];
        double m = static_cast<double>(was.m);
        for (index_t j = 0; j < r.keys; ++j)
          if (r.sees(row, j)) m = std::max(m, r.score(row, j));
        CHECK(static_cast<double>(states[at].m) == m);
        const double factor = std::exp(static_cast<double>(was.m) - m);
        double s = static_cast<double>(was.s) * factor;
        for (index_t j = 0; j < r.keys; ++j) {
          expected_shares.push_back(r.sees(row, j) ? std::exp(r.score(row, j) - m) : 0.0);
          s += expected_shares.back();
          if (!r.sees(row, j))
            CHECK(static_cast<float>(shares[at * r.keys + static_cast<std::size_t>(j)]) == 0.0F);
        }
        found_s.push_back(states[at].s);
        expected_s.push_back(s);
        for (index_t e = 0; e < r.size; ++e) // before the first tile nothing is touched
          expected_sums.push_back(
              static_cast<double>(sums_before[at * r.size + static_cast<std::size_t>(e)]) *
              (first ? 1.0 : factor));
      }
      check_accurate(shares, expected_shares, 3);
      check_accurate(found_s, expected_s, 4);
      check_accurate(sums, expected_sums, 4);
    }
}

TEST_CASE_TEMPLATE("gradients of a tile's scores", T, float, bfloat16) {
  for (const pl::cpu_level level : cpu_levels())
    for (int i = 0; i < 4; ++i) {
      CAPTURE(static_cast<int>(level));
      CAPTURE(i);
      rig r((i & 1) == 0, (i & 2) != 0, static_cast<std::uint64_t>(i));
      const index_t all = r.rows * r.batches;
      std::vector<online_lse> states(static_cast<std::size_t>(all));
      for (std::size_t k = 0; k < states.size(); ++k)
        states[k] = online_lse::of(20.0F + static_cast<float>(k)),
        states[k].s = static_cast<float>(k % 5) * 3;
      const auto dots = random_values<float>(all, 7);
      auto scores = r.scores, dshares = r.dshares;
      // What a hidden key holds is not looked at.
      if (!r.hidden.empty()) dshares[0] = static_cast<float>(NAN);
      std::vector<T> shares(scores.size()), dscores(scores.size());
      const pl::attention_gradient gradient{r.mask, r.where};
      const auto hidden = support::all(std::as_const(r.hidden));
      const tile<const online_lse> known{states.data(), r.positions, r.heads, r.heads};
      const tile<const float> known_dots{dots.data(), r.positions, r.heads, r.heads};
      if constexpr (std::is_same_v<T, float>) {
        run_rows(level, all, gradient, r.batch(scores, r.keys), r.batch(dshares, r.keys), hidden, known,
                 known_dots);
        shares = scores, dscores = dshares;
      } else {
        const tile_batch<const float> z = r.batch(scores, r.keys), d = r.batch(dshares, r.keys);
        run_rows(level, all, gradient, z, d, hidden, known, known_dots, r.batch(shares, r.keys),
                 r.batch(dscores, r.keys));
      }
      std::vector<double> expected_shares, expected_dscores;
      for (index_t row = 0; row < all; ++row) {
        const std::size_t at = rig::place(row);
        const double s = static_cast<double>(states[at].s);
        for (index_t j = 0; j < r.keys; ++j) {
          const bool sees = r.sees(row, j) && s != 0;
          const double share = sees ? std::exp(r.score(row, j) - static_cast<double>(states[at].m)) / s : 0.0;
          expected_shares.push_back(share);
          expected_dscores.push_back(
              sees ? share * (static_cast<double>(r.dshares[static_cast<std::size_t>(row * r.keys + j)]) -
                              static_cast<double>(dots[at]))
                   : 0.0);
        }
      }
      check_accurate(shares, expected_shares, 4);
      check_accurate(dscores, expected_dscores, 4);
    }
}

TEST_CASE("rows between all heads and a tile, sums joined, means, dots, logarithms") {
  for (const pl::cpu_level level : cpu_levels()) {
    CAPTURE(static_cast<int>(level));
    rig r(true, false, 3);
    const index_t all = r.rows * r.batches, columns = r.heads * r.size;
    // There and back is twice the same.
    matrix<bfloat16> flat(r.positions, columns, random_values<bfloat16>(r.positions * columns, 1));
    std::vector<bfloat16> packed(static_cast<std::size_t>(all * r.size));
    run_rows(level, all, pl::attention_pack{r.where}, flat.in(), r.batch(packed, r.size));
    matrix<float> sums(r.positions, columns, random_values<float>(r.positions * columns, 2));
    const matrix<float> before = sums;
    std::vector<float> wide;
    for (const bfloat16 x : packed) wide.push_back(static_cast<float>(x));
    const tile_batch<const float> part = r.batch(wide, r.size);
    run_rows(level, all, pl::attention_unpack{r.where}, part, sums.out());
    for (index_t i = 0; i < r.positions; ++i)
      for (index_t e = 0; e < columns; ++e)
        CHECK(sums.at(i, e) == before.in()(i, e) + static_cast<float>(flat.in()(i, e)));

    // States of both sides further apart than e^x reaches, either way, equal, and with nothing on a side.
    std::vector<online_lse> states(static_cast<std::size_t>(all)), tiles(states.size());
    for (std::size_t k = 0; k < states.size(); ++k) {
      if (k % 5 != 0) states[k] = online_lse::of(k % 3 == 0 ? 100.0F : 1.0F);
      if (k % 4 != 0) tiles[k] = online_lse::of(k % 2 == 0 ? -100.0F : 3.0F);
    }
    const auto states_before = states;
    sums = before;
    run_rows(level, all, pl::attention_join{r.where}, support::all(std::as_const(tiles)), part,
             tile<online_lse>{states.data(), r.positions, r.heads, r.heads}, sums.out());
    std::vector<float> found;
    std::vector<double> expected;
    for (index_t row = 0; row < all; ++row) {
      const std::size_t at = rig::place(row);
      const online_lse a = states_before[at], b = tiles[static_cast<std::size_t>(row)];
      const double m = std::max(static_cast<double>(a.m), static_cast<double>(b.m));
      const double x = std::exp(static_cast<double>(a.m) - m), y = std::exp(static_cast<double>(b.m) - m);
      CHECK(static_cast<double>(states[at].m) == m);
      CHECK(static_cast<double>(states[at].s) ==
            doctest::Approx(static_cast<double>(a.s) * x + static_cast<double>(b.s) * y));
      const auto i = static_cast<index_t>(at) / r.heads, h = static_cast<index_t>(at) % r.heads;
      for (index_t e = 0; e < r.size; ++e) {
        found.push_back(sums.at(i, h * r.size + e));
        const double part_of =
            b.s == 0 ? 0.0 : static_cast<double>(wide[static_cast<std::size_t>(row * r.size + e)]);
        expected.push_back(static_cast<double>(before.in()(i, h * r.size + e)) * (b.s == 0 ? 1.0 : x) +
                           part_of * y);
      }
    }
    check_accurate(found, expected, 4);

    // Of who gives (out, lse): a part of -infinity is not looked at.
    matrix<bfloat16> result(r.positions, columns, random_values<bfloat16>(r.positions * columns, 4));
    std::vector<float> lses(static_cast<std::size_t>(all), 2.0F);
    lses[0] = -std::numeric_limits<float>::infinity(); // head 0 of position 0
    result.at(0, 0) = static_cast<bfloat16>(static_cast<float>(NAN));
    std::fill(states.begin(), states.end(), online_lse::of(2.0F));
    sums = before;
    run_rows(level, all, pl::attention_join_lse{r.heads}, result.in(),
             tile<const float>{lses.data(), r.heads, r.positions, r.positions}, support::all(states),
             sums.out());
    CHECK(states[0].s == 1.0F);
    CHECK(states[1].s == 2.0F);
    CHECK(sums.at(0, 0) == before.in()(0, 0));
    CHECK(sums.at(1, 5) == before.in()(1, 5) + static_cast<float>(result.in()(1, 5)));

    // Means: half of the sums, and 0 where nothing was seen.
    states[7] = {};
    for (index_t e = 0; e < r.size; ++e) sums.at(1, r.size + e) = 0; // position 1, head 1
    matrix<bfloat16> mean(r.positions, columns);
    const tile<const float> summed = sums.in();
    run_rows(level, all, pl::attention_mean{r.heads}, support::all(std::as_const(states)), summed,
             mean.out());
    CHECK(static_cast<float>(mean.in()(1, r.size)) == 0.0F);
    CHECK(static_cast<float>(mean.in()(2, 3)) ==
          static_cast<float>(static_cast<bfloat16>(sums.at(2, 3) / 2)));
    std::vector<float> logs(static_cast<std::size_t>(all));
    run_elements(level, all, pl::attention_logarithms{}, support::all(std::as_const(states)),
                 tile<float>{logs.data(), r.heads, r.positions, r.positions});
    CHECK(logs[static_cast<std::size_t>(r.positions + 1)] == std::numeric_limits<float>::infinity());
    CHECK(logs[static_cast<std::size_t>(2 * r.positions + 1)] == doctest::Approx(2 + std::log(2.0)));
    sums.at(2, 3) = 8;
    run_rows(level, all, pl::attention_mean{r.heads}, support::all(std::as_const(states)), sums.out());
    CHECK(sums.at(2, 3) == 4.0F);

    std::vector<float> dots(static_cast<std::size_t>(all));
    run_rows(level, all, pl::attention_dots{r.heads}, flat.in(), mean.in(), support::all(dots));
    std::vector<double> exact;
    for (index_t i = 0; i < r.positions; ++i)
      for (index_t h = 0; h < r.heads; ++h) {
        double dot = 0;
        for (index_t e = h * r.size; e < (h + 1) * r.size; ++e)
          dot += static_cast<double>(static_cast<float>(flat.in()(i, e))) *
                 static_cast<double>(static_cast<float>(mean.in()(i, e)));
        exact.push_back(dot);
      }
    check_accurate(dots, exact, 4);
    run_rows(level, r.positions, pl::attention_clear{}, sums.out());
    CHECK(sums.at(4, columns - 1) == 0.0F);
  }
}
