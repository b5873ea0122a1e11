// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a linear cross-entropy and of an entropy against float64, tile by tile, with every option,
// at every level of vectors and by a wide team.
#include "reference/linear_cross_entropy.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/ring/cross_entropy_blocks.hpp>
#include <plateau/ring/cross_entropy_kernels.hpp>
#include <plateau/ring/cross_entropy_one_pass.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/entropy_kernels.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace pl = plateau;
using pl::bfloat16, pl::index_t;
using namespace support;

namespace {

// One hidden element, so that weight[v] x 1 is any product; several tokens through x.
struct rig {
  reference::linear_loss oracle;
  std::vector<float> products, bias, classes, weights;
  pl::loss_terms terms;
  pl::logit_map map;

  rig(index_t tokens, index_t vocabulary, int options, std::uint64_t seed) {
    oracle.tokens = tokens;
    oracle.vocabulary = vocabulary;
    oracle.hidden = tokens; // x is the identity: token i has the products weight(., i)
    products = random_values<float>(tokens * vocabulary, seed, 4.0);
    oracle.x.assign(static_cast<std::size_t>(tokens * tokens), 0);
    oracle.weight.assign(static_cast<std::size_t>(tokens * vocabulary), 0);
    for (index_t i = 0; i < tokens; ++i) {
      oracle.x[static_cast<std::size_t>(i * tokens + i)] = 1;
      for (index_t v = 0; v < vocabulary; ++v)
        oracle.weight[static_cast<std::size_t>(v * tokens + i)] =
            static_cast<double>(products[static_cast<std::size_t>(i * vocabulary + v)]);
      oracle.targets.push_back((7 * i + static_cast<index_t>(seed)) % vocabulary);
    }
    oracle.targets[1] = -100;
    oracle.targets[2] = vocabulary; // bad
    if ((options & 1) != 0) oracle.bias = widened(bias = random_values<float>(vocabulary, seed + 1));
    if ((options & 2) != 0) {
      classes = random_values<float>(vocabulary, seed + 2);
      for (float& c : classes) c = std::fabs(c);
      oracle.class_weights = widened(classes);
    }
    if ((options & 4) != 0) oracle.smoothing = static_cast<double>(terms.smoothing = 0.25F);
    if ((options & 8) != 0) oracle.z_loss = static_cast<double>(terms.z_loss = 0.03125F);
    if ((options & 16) != 0) oracle.soft_cap = static_cast<double>(map.cap = 5);
    if ((options & 32) != 0) oracle.scale = static_cast<double>(map.scale = 0.625F);
    if ((options & 64) != 0) {
      weights = random_values<float>(tokens, seed + 3);
      weights[0] = 0; // counts as nothing
      oracle.token_weights = widened(weights);
    }
    terms.vocabulary = vocabulary;
  }
};

template <class T> pl::view<const T> part(const std::vector<T>& v, index_t first, index_t n) {
  return v.empty() ? pl::view<const T>{} : all(v).sub(first, n);
}
matrix<float> columns(const rig& r, index_t first, index_t n) {
  matrix<float> out(r.oracle.tokens, n);
  for (index_t i = 0; i < r.oracle.tokens; ++i)
    for (index_t c = 0; c < n; ++c)
      out.at(i, c) = r.products[static_cast<std::size_t>(i * r.oracle.vocabulary + first + c)];
  return out;
}

template <class T> void check_rig(pl::cpu_level level, const rig& r, index_t tile) {
  const index_t tokens = r.oracle.tokens, vocabulary = r.oracle.vocabulary;
  std::vector<std::int64_t> travelling(static_cast<std::size_t>(tokens));
  run_elements(level, tokens, pl::token_targets{r.terms}, all(r.oracle.targets), all(r.weights),
               all(travelling));
  for (index_t i = 0; i < tokens; ++i)
    CHECK(travelling[static_cast<std::size_t>(i)] ==
          (r.oracle.counts(i) ? r.oracle.targets[static_cast<std::size_t>(i)] : std::int64_t{-1}));

  std::vector<pl::token_state> states(static_cast<std::size_t>(tokens));
  for (index_t first = 0; first < vocabulary; first += tile) {
    const index_t n = std::min(tile, vocabulary - first);
    matrix<float> z = columns(r, first, n);
    run_rows(level, tokens, pl::fold_logits{r.map, first, r.terms.smoothing != 0}, z.out(),
             part(r.bias, first, n), part(r.classes, first, n), all(std::as_const(travelling)), all(states));
    CHECK(z.spare_untouched());
  }

  // The same with everything asked for, in two parts that are merged; twice, the second time with ids alone.
  const auto seen = r.oracle.forward();
  for (const bool entropy : {true, false}) {
    struct part_of_row {
      std::vector<pl::token_state> states;
      std::vector<float> spreads;
      std::vector<std::int64_t> ids;
    };
    const auto count = static_cast<std::size_t>(tokens);
    part_of_row parts[2];
    for (part_of_row& p : parts)
      p = {std::vector<pl::token_state>(count), std::vector<float>(entropy ? count : 0),
           std::vector<std::int64_t>(count, pl::no_id)};
    for (index_t first = 0; first < vocabulary; first += tile) {
      const index_t n = std::min(tile, vocabulary - first);
      part_of_row& to =
          parts[first / tile % 2 == 0 ? 1 : 0]; // what comes first in the vocabulary arrives last
      matrix<float> z = columns(r, first, n);
      run_rows(level, tokens, pl::fold_statistics{{r.map, first, r.terms.smoothing != 0}}, z.out(),
               part(r.bias, first, n), part(r.classes, first, n), all(std::as_const(travelling)),
               all(to.states), all(to.spreads), all(to.ids));
      CHECK(z.spare_untouched());
    }
    part_of_row& whole = parts[0];
    run_elements(level, tokens, pl::merge_statistics{}, all(std::as_const(parts[1].states)),
                 all(std::as_const(parts[1].spreads)), all(std::as_const(parts[1].ids)), all(whole.states),
                 all(whole.spreads), all(whole.ids));
    std::vector<unsigned char> correct(count, 7);
    run_elements(level, tokens, pl::finish_statistics{r.terms}, all(r.oracle.targets), all(r.weights),
                 all(std::as_const(whole.states)), all(whole.spreads), all(whole.ids), all(correct));
    if (entropy) check_accurate(whole.spreads, seen.entropies, 4);
    CHECK(whole.ids == seen.argmaxes);
    std::vector<float> joined;
    for (const pl::token_state& s : whole.states) joined.push_back(s.lse().value());
    check_accurate(joined, seen.lses, 4);
    double right = 0, counted = 0;
    for (index_t i = 0; i < tokens; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool hit = r.oracle.counts(i) && seen.argmaxes[at] == r.oracle.targets[at];
      CHECK(correct[at] == (hit ? 1 : 0));
      right += hit ? 1 : 0;
      counted += r.oracle.counts(i) ? 1 : 0;
    }
    std::vector<pl::token_sums> sums(static_cast<std::size_t>(tokens / 2 + 2)); // the last one has no tokens
    run_rows(level, static_cast<index_t>(sums.size()), pl::sum_correct{r.terms, 2}, all(r.oracle.targets),
             all(r.weights), all(std::as_const(whole.ids)), all(sums));
    pl::token_sums together;
    for (const pl::token_sums& s : sums) together = together + s;
    CHECK(together.loss == right);
    CHECK(together.weight == counted);
  }

  std::vector<float> class_sum(1), losses(static_cast<std::size_t>(tokens)), lses(losses), logs(losses);
  run_rows(level, 1, pl::sum_classes{vocabulary}, all(std::as_const(r.classes)), all(class_sum));
  run_elements(level, tokens, pl::token_outputs{r.terms}, all(r.oracle.targets), all(r.weights),
               all(r.classes), all(std::as_const(class_sum)), all(std::as_const(states)), all(losses),
               all(lses), all(logs));
  check_accurate(losses, seen.losses, 4);
  check_accurate(lses, seen.lses, 4);
  check_accurate(logs, seen.log_probabilities, 4);
  CHECK(losses[1] == 0.0F);
  CHECK(losses[2] == 0.0F);

  for (const index_t block : {1, 2, 100}) {
    const index_t blocks = (tokens + block - 1) / block + 1; // the last one has no tokens
    std::vector<pl::token_sums> sums(static_cast<std::size_t>(blocks));
    std::vector<double> two(2);
    std::vector<pl::bad_target> bad(1);
    run_rows(level, blocks, pl::sum_tokens{r.terms, block}, all(r.oracle.targets), all(r.weights),
             all(r.classes), all(std::as_const(class_sum)), all(std::as_const(states)), all(sums));
    run_rows(level, 1, pl::join_sums{}, all(std::as_const(sums)), all(r.oracle.targets), all(two), all(bad));
    CHECK(two[0] == doctest::Approx(seen.sum()).epsilon(1e-5));
    CHECK(two[1] == doctest::Approx(seen.weight()).epsilon(1e-5));
    CHECK(bad[0].token == 2);
    CHECK(bad[0].target == vocabulary);
  }

  // Gradients, with another upstream gradient for each token.
  const auto upstream = random_values<float>(tokens, 99);
  const std::vector<double> divisors{0, 1};
  std::vector<pl::token_gradient> travel(static_cast<std::size_t>(tokens));
  const pl::loss_divisor by{3.0, false, false};
  run_elements(level, tokens, pl::token_gradients{r.terms, by, 0}, all(r.oracle.targets), all(r.weights),
               all(r.classes), all(std::as_const(class_sum)), all(std::as_const(states)), all(upstream),
               all(divisors), all(travel));
  auto factors = widened(upstream);
  for (double& f : factors) f /= 3;
  const auto expected = r.oracle.backward(factors).logits;
  std::vector<T> actual(static_cast<std::size_t>(tokens * vocabulary));
  for (index_t first = 0; first < vocabulary; first += tile) {
    const index_t n = std::min(tile, vocabulary - first);
    matrix<float> z = columns(r, first, n);
    matrix<T> d(tokens, n);
    const pl::logit_gradients kernel{r.map, first};
    run_rows(level, tokens, kernel, z.out(), part(r.bias, first, n), part(r.classes, first, n),
             pl::view<const pl::token_gradient>(all(travel)), d.out());
    if constexpr (std::is_same_v<T, float>) {
      matrix<float> in_place = columns(r, first, n);
      run_rows(level, tokens, kernel, in_place.out(), part(r.bias, first, n), part(r.classes, first, n),
               pl::view<const pl::token_gradient>(all(travel)), in_place.out());
      CHECK(same_bits(in_place.values(), d.values()));
    }
    CHECK(d.spare_untouched());
    for (index_t i = 0; i < tokens; ++i)
      for (index_t c = 0; c < n; ++c)
        actual[static_cast<std::size_t>(i * vocabulary + first + c)] = d.at(i, c);
  }
  check_accurate(actual, expected, std::is_same_v<T, float> ? 8 : 1);
}

} // namespace

TEST_CASE("V6: tiles of any size, all options one by one and together, agree with float64") {
  for (const auto level : cpu_levels())
    for (const int options : {0, 1, 2, 4, 6, 8, 16, 32, 64, 127})
      for (const std::pair<index_t, index_t>& sizes :
           {std::pair<index_t, index_t>{3, 1}, {67, 32}, {70, 100}}) {
        const index_t vocabulary = sizes.first, tile = sizes.second;
        const std::string name = pl::cpu_level_name(level);
        CAPTURE(name);
        CAPTURE(options);
        CAPTURE(vocabulary);
        check_rig<float>(level, rig(5, vocabulary, options, 3), tile);
      }
  for (const int options : {0, 127}) check_rig<bfloat16>(cpu_levels().back(), rig(6, 75, options, 4), 33);
}

TEST_CASE(
    "the entropies of tiles of any size, merged, agree with float64; -infinity adds nothing, NaN stays") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto level : cpu_levels())
    for (const index_t tile : {1, 33, 64, 200}) {
      const index_t tokens = 6, vocabulary = 130;
      auto z = random_values<float>(tokens * vocabulary, 5, 6);
      for (std::size_t v = 0; v < 130; ++v) z[130 + v] = -infinity;
      z[2 * 130 + 70] = nan;
      z[3 * 130 + 3] = infinity;
      z[4 * 130 + 9] = -infinity;
      for (std::size_t v = 0; v < 130; ++v) z[5 * 130 + v] = -1e4F;
      std::vector<pl::entropy_state> states[2];
      for (auto& s : states) s.resize(static_cast<std::size_t>(tokens));
      for (index_t first = 0; first < vocabulary; first += tile) {
        const index_t n = std::min(tile, vocabulary - first);
        matrix<float> block(tokens, n);
        for (index_t i = 0; i < tokens; ++i)
          for (index_t c = 0; c < n; ++c)
            block.at(i, c) = z[static_cast<std::size_t>(i * vocabulary + first + c)];
        run_rows(level, tokens, pl::fold_entropies{}, std::as_const(block).in(),
                 all(states[first / tile % 2]));
      }
      run_elements(level, tokens, pl::merge_entropies{}, all(std::as_const(states[1])), all(states[0]));
      std::vector<float> entropies(6), lses(6), nothing;
      run_elements(level, tokens, pl::write_entropies{}, all(std::as_const(states[0])), all(entropies),
                   all(lses));
      run_elements(level, tokens, pl::write_entropies{}, all(std::as_const(states[0])), all(nothing),
                   all(nothing));
      for (const std::size_t i : {0, 4, 5}) {
        const reference::vec row(z.begin() + static_cast<index_t>(130 * i),
                                 z.begin() + static_cast<index_t>(130 * (i + 1)));
        const double lse = reference::linear_loss::lse_of(row);
        double entropy = 0;
        for (const double v : row)
          if (std::exp(v - lse) > 0) entropy += std::exp(v - lse) * (lse - v);
        CHECK(static_cast<double>(entropies[i]) == doctest::Approx(entropy).epsilon(2e-6));
        CHECK(static_cast<double>(lses[i]) == doctest::Approx(lse).epsilon(1e-6));
      }
      for (const std::size_t i : {1, 2, 3}) CHECK(std::isnan(entropies[i]));
    }
}

TEST_CASE("V14: -infinity adds nothing, all of it is NaN, and NaN stays in its row: loss and gradient") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const pl::loss_terms terms{-100, 40, 0, 0};
  const std::vector<std::int64_t> targets{1, 1, 1, -100, 1};
  const std::vector<float> one{1}, sum{40}, none;
  const std::vector<double> sums{0, 5};
  for (const auto level : cpu_levels()) {
    matrix<float> z(5, 40, std::vector<float>(200, 0.5F));
    z.at(0, 3) = -infinity;
    for (index_t c = 0; c < 40; ++c) z.at(1, c) = -infinity;
    z.at(2, 17) = nan;
    z.at(3, 0) = nan; // ignored
    matrix<float> again(5, 40, z.values()), d(5, 40);
    std::vector<pl::token_state> states(5);
    std::vector<pl::token_gradient> travel(5);
    std::vector<float> losses(5), nothing;
    run_rows(level, 5, pl::fold_logits{}, z.out(), all(none), all(none), all(targets), all(states));
    run_elements(level, 5, pl::token_outputs{terms}, all(targets), all(none), all(none), all(sum),
                 all(std::as_const(states)), all(losses), all(nothing), all(nothing));
    CHECK(losses[0] == doctest::Approx(std::log(39.0)));
    CHECK(std::isnan(losses[1]));
    CHECK(std::isnan(losses[2]));
    CHECK(losses[3] == 0.0F);
    CHECK(losses[4] == doctest::Approx(std::log(40.0)));
    run_elements(level, 5, pl::token_gradients{terms, {}, 0}, all(targets), all(none), all(none), all(sum),
                 all(std::as_const(states)), all(one), all(sums), all(travel));
    run_rows(level, 5, pl::logit_gradients{}, again.out(), all(none), all(none), all(std::as_const(travel)),
             d.out());
    for (index_t c = 0; c < 40; ++c) {
      CHECK(d.at(0, c) == doctest::Approx((c == 3 ? 0.0 : 1.0 / 39) - (c == 1)));
      CHECK(std::isnan(d.at(1, c)));
      CHECK(std::isnan(d.at(2, c)));
      CHECK(d.at(3, c) == 0.0F);
      CHECK(d.at(4, c) == doctest::Approx(1.0 / 40 - (c == 1)));
    }
  }
}

TEST_CASE("V13, V15: targets are compared in 64 bits, and no weight is looked up for one that is ignored") {
  const std::vector<float> classes{1, 2, 3}, sum{6}, none;
  const pl::loss_terms terms{-100, 3, 0, 0};
  // 2^32 + 1 is 1 in 32 bits.
  const std::vector<std::int64_t> wide{0, -100, (std::int64_t{1} << 32) + 1, -1, 2};
  const std::vector<std::int32_t> narrow{0, -100, 3, -1, 2};
  std::vector<pl::token_state> states(5);
  for (pl::token_state& s : states) s.m = 0, s.s = 1;
  std::vector<pl::token_sums> blocks(1);
  std::vector<double> sums(2);
  std::vector<pl::bad_target> bad(1);
  for (const auto level : cpu_levels()) {
    const auto check = [&](const auto& targets, std::int64_t offender) {
      run_rows(level, 1, pl::sum_tokens{terms, 5}, all(targets), all(none), all(classes), all(sum),
               all(std::as_const(states)), all(blocks));
      run_rows(level, 1, pl::join_sums{}, all(std::as_const(blocks)), all(targets), all(sums), all(bad));
      CHECK(sums[1] == 4); // of the classes 0 and 2
      CHECK(bad[0].token == 2);
      CHECK(bad[0].target == offender);
    };
    check(wide, (std::int64_t{1} << 32) + 1);
    check(narrow, 3);
    const std::vector<std::int32_t> good{0, 1, 2, -100, 1};
    run_rows(level, 1, pl::sum_tokens{terms, 5}, all(good), all(none), all(classes), all(sum),
             all(std::as_const(states)), all(blocks));
    run_rows(level, 1, pl::join_sums{}, all(std::as_const(blocks)), all(good), all(sums), all(bad));
    CHECK(bad[0].token == -1);
  }
}

TEST_CASE("V1: the mean over no tokens is 0, or NaN by option; a sum is 0") {
  const std::vector<double> none{0, 0}, some{6, 3};
  std::vector<float> loss(1);
  const auto reduced = [&](const std::vector<double>& sums, pl::loss_divisor by) {
    run_elements(pl::cpu_level::baseline, 1, pl::reduce_loss{by}, all(sums), all(loss));
    return loss[0];
  };
  CHECK(reduced(none, {1, true, false}) == 0.0F);
  CHECK(std::isnan(reduced(none, {1, true, true})));
  CHECK(reduced(none, {1, false, true}) == 0.0F);
  CHECK(reduced(some, {1, true, false}) == 2.0F);
  CHECK(reduced(some, {4, false, false}) == 1.5F);
}

TEST_CASE("rows are rounded, added, scaled and cleared, each by itself") {
  const index_t n = 3, cols = 75;
  const auto first = random_values<float>(n * cols, 1), second = random_values<float>(n * cols, 2);
  const std::vector<float> upstream{-1.5F};
  const std::vector<double> sums{7, 3}, nothing{0, 0};
  const pl::gradient_factor factor{{1, true, false}};
  for (const auto level : cpu_levels()) {
    const matrix<float> from(n, cols, first);
    const auto up = all(upstream);
    const auto of = all(sums);
    matrix<float> added(n, cols, second), scaled(n, cols), more(n, cols, second), here(n, cols, first),
        gone(n, cols, first), zero(n, cols);
    matrix<bfloat16> rounded(n, cols), scaled_once(n, cols);
    run_rows(level, n, pl::round_rows{}, from.in(), rounded.out());
    run_rows(level, n, pl::add_rows{}, from.in(), added.out());
    run_rows(level, n, pl::scaled_rows{factor}, up, of, from.in(), scaled.out());
    run_rows(level, n, pl::scaled_rows{factor}, up, of, from.in(), scaled_once.out());
    run_rows(level, n, pl::scaled_rows{factor}, up, all(nothing), from.in(), zero.out());
    run_rows(level, n, pl::added_rows{factor}, up, of, from.in(), more.out());
    run_rows(level, n, pl::rescaled_rows{factor}, up, of, here.out());
    run_rows(level, n, pl::cleared_rows{}, gone.out());
    for (index_t i = 0; i < n; ++i)
      for (index_t c = 0; c < cols; ++c) {
        const auto at = static_cast<std::size_t>(i * cols + c);
        CHECK(static_cast<float>(rounded.at(i, c)) == static_cast<float>(bfloat16(first[at])));
        CHECK(added.at(i, c) == second[at] + first[at]);
        CHECK(scaled.at(i, c) == -0.5F * first[at]);
        CHECK(static_cast<float>(scaled_once.at(i, c)) == static_cast<float>(bfloat16(-0.5F * first[at])));
        CHECK(zero.at(i, c) == 0.0F);
        CHECK(std::fabs(more.at(i, c) - (second[at] - 0.5F * first[at])) <= 1e-6F); // fused or not
        CHECK(here.at(i, c) == -0.5F * first[at]);
        CHECK(gone.at(i, c) == 0.0F);
      }
    CHECK(rounded.spare_untouched());
    CHECK(scaled.spare_untouched());
  }
}

TEST_CASE("blocks of the vocabulary are joined in its order, with what was asked for or without") {
  const index_t tokens = 4, blocks = 3;
  const auto m = random_values<float>(tokens * blocks, 1, 5), s = random_values<float>(tokens * blocks, 2);
  std::vector<pl::token_state> from(static_cast<std::size_t>(tokens * blocks));
  std::vector<float> spreads, none;
  std::vector<std::int64_t> ids, no_ids;
  for (std::size_t k = 0; k < from.size(); ++k) {
    from[k].m = m[k];
    from[k].s = 1 + std::fabs(s[k]);
    from[k].target = k / 4 == k % 4 % 3 ? m[k] : 0.0F; // in one block of a token
    from[k].sum = s[k];
    spreads.push_back(std::fabs(s[k]));
    ids.push_back(static_cast<std::int64_t>(10 * (k / 4)));
  }
  from[3].m = from[7].m = from[11].m = 2; // of equal ones the first
  for (const auto level : cpu_levels()) {
    std::vector<pl::token_state> states(4), alone(4);
    std::vector<float> a(4), nothing;
    std::vector<std::int64_t> largest(4), no_largest;
    run_elements(level, tokens, pl::join_blocks{blocks}, all(std::as_const(from)),
                 all(std::as_const(spreads)), all(std::as_const(ids)), all(states), all(a), all(largest));
    run_elements(level, tokens, pl::join_blocks{blocks}, all(std::as_const(from)), all(std::as_const(none)),
                 all(std::as_const(no_ids)), all(alone), all(nothing), all(no_largest));
    for (std::size_t i = 0; i < 4; ++i) {
      const auto part = [&](std::size_t b) { return from[4 * b + i]; };
      const auto spread = [&](std::size_t b) {
        return pl::entropy_state::of(part(b).lse(), spreads[4 * b + i]);
      };
      const pl::token_state expected = merge(merge(part(0), part(1)), part(2));
      for (const pl::token_state& got : {states[i], alone[i]}) {
        CHECK(got.m == expected.m);
        CHECK(got.s == doctest::Approx(expected.s).epsilon(1e-6));
        CHECK(got.target == expected.target);
        CHECK(got.sum == expected.sum);
      }
      CHECK(a[i] == doctest::Approx(merge(merge(spread(0), spread(1)), spread(2)).a).epsilon(1e-6));
      std::size_t best = 0;
      for (const std::size_t b : {1, 2})
        if (part(b).m > part(best).m) best = b;
      CHECK(largest[i] == ids[4 * best + i]);
    }
    CHECK(largest[3] == 0);
  }
}
