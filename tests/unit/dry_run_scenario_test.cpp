// SPDX-License-Identifier: Apache-2.0
//
// Scenarios: what counts() says is what expert() says, summed, for every form on a grid of ranges; shares are
// exact and cover everything once; what cannot be is refused with the field and both numbers.

#include <plateau/dry_run/scenario.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace plateau;
using namespace plateau::routing;

namespace {

using rows_t = std::vector<std::int64_t>;

rows_t counts_of(const routing_scenario& s, std::int64_t layer, const token_range& range) {
  rows_t rows(static_cast<std::size_t>(s.shape().experts), -1); // counts() must overwrite everything
  s.counts(layer, range, rows);
  return rows;
}

// The same by asking for each route; requires that experts are in range, and says whether any token repeats
// one.
rows_t counts_one_by_one(const routing_scenario& s, std::int64_t layer, const token_range& range,
                         bool* repeats = nullptr) {
  rows_t rows(static_cast<std::size_t>(s.shape().experts)), last(rows.size(), -1);
  for (std::int64_t i = 0; i < range.tokens; ++i)
    for (std::int64_t slot = 0; slot < s.shape().top_k; ++slot) {
      const std::int64_t e = s.expert(layer, range, i, slot);
      REQUIRE((e >= 0 && e < s.shape().experts));
      if (repeats != nullptr && last[static_cast<std::size_t>(e)] == i) *repeats = true;
      last[static_cast<std::size_t>(e)] = i;
      ++rows[static_cast<std::size_t>(e)];
    }
  return rows;
}

std::int64_t sum(const rows_t& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

// Random counts in which every rank has its own number of tokens; repeats experts if `skewed`.
recorded_counts random_counts(std::int64_t experts, std::int64_t top_k, bool skewed, std::uint64_t seed) {
  counts_table t{2, 3, 4, experts, {}};
  std::mt19937_64 engine(seed);
  for (std::int64_t block = 0; block < t.steps * t.layers * t.ranks; ++block) {
    const std::int64_t tokens = 40 + block % t.ranks * 7;
    rows_t rows(static_cast<std::size_t>(experts));
    for (std::int64_t route = 0; route < tokens * top_k; ++route) {
      std::size_t e = skewed ? 0 : engine() % rows.size();
      while (!skewed && rows[e] == tokens) e = (e + 1) % rows.size();
      ++rows[e];
    }
    t.rows.insert(t.rows.end(), rows.begin(), rows.end());
  }
  return {std::make_shared<const counts_table>(std::move(t))};
}

std::vector<route_form> forms_for(std::int64_t experts, std::int64_t top_k) {
  std::vector<route_form> forms{balanced{}, zipf{0},      zipf{1},
                                zipf{16},   all_to_one{}, random_counts(experts, top_k, false, 1)};
  for (const std::int64_t fraction : {0, 1, 300'000, 333'333, 950'000, 999'999, 1'000'000})
    for (const std::int64_t n : {std::int64_t{1}, (experts + 1) / 2, experts - 1, experts}) {
      if (n < 1 || (n == experts && fraction != 1'000'000)) continue;
      forms.push_back(hot{fraction, n});
      forms.push_back(rotating{fraction, n});
    }
  if (top_k > 1) forms.push_back(random_counts(experts, top_k, true, 2));
  return forms;
}

template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const config_error& error) {
    return error.what();
  }
  return "nothing";
}
std::string refusal_of(route_form routes, share_form shares = {}, routing_shape shape = {8, 2, 3, 4}) {
  return refusal([&] { routing_scenario(std::move(routes), shares, shape); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("counts are the sums of the experts of each route, and say when a token repeats one") {
  struct size {
    std::int64_t experts, top_k;
  };
  for (const size& s :
       {size{1, 1}, size{2, 1}, size{8, 1}, size{8, 2}, size{7, 3}, size{4, 4}, size{33, 8}}) {
    CAPTURE(s.experts);
    CAPTURE(s.top_k);
    std::size_t number = 0;
    for (const route_form& form : forms_for(s.experts, s.top_k)) {
      CAPTURE(++number);
      const routing_scenario scenario(form, even_shares{}, {s.experts, s.top_k, 3, 4});
      bool repeats = false;
      for (const std::int64_t step : {evaluation_step, std::int64_t{0}, std::int64_t{1}, std::int64_t{5}})
        for (const std::int64_t layer : {0, 1, 2})
          for (const std::int64_t rank : {0, 3})
            for (const std::int64_t tokens : {0, 1, 2, 7, 40}) {
              if (tokens == 40 && layer != 1) continue;
              const std::int64_t first_of_rank = tokens == 40 ? 0 : 29;
              const token_range range{step, rank, 1000 * rank + first_of_rank, first_of_rank, tokens};
              const rows_t rows = counts_of(scenario, layer, range);
              REQUIRE(rows == counts_one_by_one(scenario, layer, range, &repeats));
              REQUIRE(sum(rows) == tokens * s.top_k);
            }
      if (repeats) CHECK(scenario.repeats_experts());
      // Short ranges need not meet a rare repetition, but the even and the capped forms have none.
      if (!scenario.repeats_experts()) CHECK_FALSE(repeats);
    }
  }
}

TEST_CASE("far into a run, and over many tokens, counts are still the sums") {
  for (const route_form& form : {route_form{balanced{}}, route_form{zipf{1.1}}, route_form{hot{333'333, 3}},
                                 route_form{rotating{950'000, 5}}, route_form{all_to_one{}}}) {
    const routing_scenario scenario(form, even_shares{}, {128, 8});
    const token_range range{1'000'000, 63, std::int64_t{1} << 40, 0, 16'384};
    CHECK(counts_of(scenario, 93, range) == counts_one_by_one(scenario, 93, range));
  }
}

TEST_CASE("shares of routes are exact") {
  const auto over = [](const route_form& form, std::int64_t tokens, std::int64_t layer = 0,
                       std::int64_t step = 0, routing_shape shape = {8, 2}) {
    return counts_of(routing_scenario(form, even_shares{}, shape), layer, {step, 0, 0, 0, tokens});
  };
  CHECK(over(balanced{}, 80, 5) == rows_t(8, 20));
  CHECK(over(hot{750'000, 2}, 400) == rows_t{300, 300, 34, 34, 33, 33, 33, 33});
  CHECK(over(hot{1'000'000, 1}, 50) == rows_t{100, 0, 0, 0, 0, 0, 0, 0}); // both routes of every token
  CHECK(over(all_to_one{}, 50) == rows_t{50, 50, 0, 0, 0, 0, 0, 0});
  CHECK(over(rotating{1'000'000, 2}, 50) == rows_t{50, 50, 0, 0, 0, 0, 0, 0});
  CHECK(over(rotating{1'000'000, 2}, 50, 1) == rows_t{0, 0, 50, 50, 0, 0, 0, 0});
  CHECK(over(rotating{1'000'000, 2}, 50, 1, 3) == rows_t{50, 50, 0, 0, 0, 0, 0, 0});
  CHECK(over(rotating{1'000'000, 3}, 60, 2, 0) == rows_t{40, 0, 0, 0, 0, 0, 40, 40}); // around the end
  for (std::int64_t tokens = 0; tokens < 300; ++tokens) {
    const rows_t rows = over(hot{950'000, 4}, tokens, 0, 0, {128, 8});
    REQUIRE(rows[0] + rows[1] + rows[2] + rows[3] == tokens * 8 * 95 / 100); // the floor
    REQUIRE(rows[0] - rows[3] <= 1);
  }
}

TEST_CASE("recorded counts are given back, by rank, layer and step; evaluation is balanced") {
  counts_table t{2, 1, 2, 4, {3, 1, 0, 2, /**/ 8, 0, 0, 0, /**/ 0, 6, 0, 0, /**/ 2, 2, 2, 2}};
  const routing_scenario s(recorded_counts{std::make_shared<const counts_table>(t)}, even_shares{},
                           {4, 2, 1, 2});
  CHECK(counts_of(s, 0, {0, 0, 0, 0, 3}) == rows_t{3, 1, 0, 2});
  CHECK(counts_of(s, 0, {0, 1, 3, 0, 4}) == rows_t{8, 0, 0, 0});
  CHECK(counts_of(s, 0, {1, 0, 0, 0, 3}) == rows_t{0, 6, 0, 0});
  CHECK(counts_of(s, 0, {1, 1, 3, 0, 4}) == rows_t{2, 2, 2, 2});
  CHECK(counts_of(s, 0, {7, 1, 3, 0, 4}) == rows_t{2, 2, 2, 2}); // begins again after two steps
  CHECK(counts_of(s, 0, {evaluation_step, 1, 0, 0, 6}) == rows_t(4, 3));
  // Row j of 3, 1, 0, 2 in the order of experts is slot j / 3 of token j % 3.
  const std::vector<std::int64_t> expected{0, 1, 0, 3, 0, 3};
  for (std::int64_t token = 0; token < 3; ++token)
    for (std::int64_t slot = 0; slot < 2; ++slot)
      CHECK(s.expert(0, {0, 0, 0, token, 1}, 0, slot) ==
            expected[static_cast<std::size_t>(2 * token + slot)]);
  CHECK(s.repeats() == "step 0, layer 0, rank 1: 8 rows of 4 tokens go to expert 0");
  s.check_tokens(0, 3);
  CHECK(refusal([&] { s.check_tokens(1, 3); }) ==
        "recorded_counts.rows: step 0, layer 0, rank 1: the rows sum to 8; expected 6, 3 tokens x top-k 2");
  CHECK(
      has(refusal([&] { s.check_tokens(2, 3); }), "recorded_counts.ranks: 2; expected counts of rank 2 too"));
  CHECK(has(refusal([&] { counts_of(s, 0, {0, 0, 0, 2, 2}); }), "rank 0: 3 tokens; asked for 2 to 3"));
  CHECK(has(refusal([&] {
              counts_of(s, 1, {0, 0, 0, 0, 1});
            }),
            "layer 1 of rank 0 is not in the counts of 1"));
}

TEST_CASE("which scenarios repeat experts within a token, and what a report says of them") {
  const auto repeats = [](const route_form& form, routing_shape shape = {128, 8}) {
    return routing_scenario(form, even_shares{}, shape).repeats();
  };
  CHECK(repeats(hot{950'000, 4}) == "7.6 of its 8 routes go to 4 experts");
  CHECK(repeats(hot{500'000, 4}) == "");
  CHECK(repeats(hot{500'001, 4}) == "4.000008 of its 8 routes go to 4 experts");
  CHECK(repeats(rotating{1'000'000, 1}, {8, 2}) == "2 of its 2 routes go to 1 expert");
  CHECK(repeats(hot{100'000, 7}, {8, 2}) == "1.8 of its 2 routes go to 1 expert"); // the cold ones
  CHECK(repeats(hot{1'000'000, 8}) == "");
  for (const route_form& form : {route_form{balanced{}}, route_form{zipf{16}}, route_form{all_to_one{}}})
    CHECK_FALSE(routing_scenario(form, even_shares{}, {8, 8}).repeats_experts());
}

TEST_CASE("shares of tokens cover everything once, in order, and none is larger than the largest") {
  for (const std::int64_t ranks : {1, 2, 3, 4, 7, 64, 1000})
    for (const share_form& form :
         {share_form{}, share_form{ragged{}}, share_form{zero_rank{0}}, share_form{zero_rank{ranks - 1}}}) {
      if (std::holds_alternative<zero_rank>(form) && ranks == 1) continue;
      const routing_scenario scenario(balanced{}, form, {8, 2, 1, ranks});
      std::int64_t largest = 0;
      for (const std::int64_t total : {0, 1, 2, 5, 63, 64, 65, 1000, 1 << 24}) {
        std::int64_t next = 0, most = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const share_range own = scenario.share(rank, ranks, total);
          REQUIRE(own.first == next);
          REQUIRE(own.last >= own.first);
          next = own.last;
          most = std::max(most, own.size());
          if (const auto* zero = std::get_if<zero_rank>(&form); zero != nullptr && zero->rank == rank)
            REQUIRE(own.size() == 0);
        }
        REQUIRE(next == total);
        largest = std::max(largest, most);
        REQUIRE(largest <= largest_share(form, ranks, total)); // also for fewer
        REQUIRE(largest_share(form, ranks, total) <= most + 1);
      }
    }
  const auto sizes = [](const share_form& form, std::int64_t ranks, std::int64_t total) {
    rows_t out;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      out.push_back(share_of(form, rank, ranks, total).size());
    return out;
  };
  CHECK(sizes(even_shares{}, 4, 10) == rows_t{2, 3, 2, 3});
  CHECK(sizes(ragged{}, 4, 20) == rows_t{2, 4, 6, 8});
  CHECK(sizes(ragged{}, 1, 20) == rows_t{20});
  CHECK(sizes(zero_rank{1}, 4, 9) == rows_t{3, 0, 3, 3});
  CHECK(share_code(zero_rank{0}) != share_code(zero_rank{1}));
  CHECK(share_code(ragged{}) != share_code(even_shares{}));
}

TEST_CASE("what cannot be is refused with the field and both numbers") {
  CHECK(refusal_of(hot{-1, 1}) == "hot.fraction_millionths: -1; expected 0 to 1000000");
  CHECK(refusal_of(hot{1'000'001, 1}) == "hot.fraction_millionths: 1000001; expected 0 to 1000000");
  CHECK(refusal_of(rotating{1'000'001, 1}) == "rotating.fraction_millionths: 1000001; expected 0 to 1000000");
  CHECK(has(refusal_of(hot{std::numeric_limits<std::int64_t>::max(), 1}), "expected 0 to 1000000"));
  CHECK(refusal_of(hot{500'000, 9}) == "hot.experts: 9; expected 1 to 8, the experts of a layer");
  CHECK(refusal_of(rotating{500'000, 0}) == "rotating.experts: 0; expected 1 to 8, the experts of a layer");
  CHECK(has(refusal_of(hot{500'000, 8}), "hot.fraction_millionths: 500000; expected 1000000, since all 8"));
  CHECK(has(refusal_of(zipf{-1}), "zipf.exponent: -1.000000; expected 0 to 16"));
  CHECK(has(refusal_of(zipf{17}), "expected 0 to 16"));
  CHECK(has(refusal_of(zipf{std::numeric_limits<double>::quiet_NaN()}), "expected 0 to 16"));
  CHECK(refusal_of(balanced{}, {}, {8, 9}) == "top_k: 9; expected 1 to 8, the experts of a layer");
  CHECK(refusal_of(balanced{}, {}, {0, 0}) == "top_k: 0; expected 1 to 0, the experts of a layer");
  CHECK(refusal_of(balanced{}, zero_rank{4}) ==
        "zero_rank.rank: 4 does not exist; expected 0 to 3, of 4 ranks");
  CHECK(has(refusal_of(balanced{}, zero_rank{-1}), "zero_rank.rank: -1 does not exist"));
  CHECK(has(refusal_of(balanced{}, zero_rank{0}, {8, 2, 3, 1}), "expected at least 2 ranks"));
  CHECK(refusal([] { check_shares(ragged{}, 0); }) == "shares: 0 ranks; expected at least 1");

  const auto with = [](counts_table t) { return recorded_counts{std::make_shared<const counts_table>(t)}; };
  CHECK(has(refusal_of(recorded_counts{}), "recorded_counts.table: is missing"));
  CHECK(refusal_of(with({1, 3, 4, 8, {1, 2}})) ==
        "recorded_counts.rows: 2 numbers; expected 1 steps x 3 layers x 4 ranks x 8 experts");
  CHECK(has(refusal_of(with({0, 3, 4, 8, {}})), "expected 0 steps"));
  const rows_t none(96);
  CHECK(refusal_of(with({1, 3, 4, 8, none})) == "nothing");
  CHECK(refusal_of(with({1, 3, 2, 16, none})) == "recorded_counts.experts: 16; expected 8");
  CHECK(refusal_of(with({1, 6, 2, 8, none})) == "recorded_counts.layers: 6; expected 3");
  CHECK(refusal_of(with({2, 3, 2, 8, none})) == "recorded_counts.ranks: 2; expected 4");
  rows_t odd = none, negative = none;
  odd[8 * 7 + 3] = 5; // layer 1, rank 3
  CHECK(refusal_of(with({1, 3, 4, 8, odd})) ==
        "recorded_counts.rows: step 0, layer 1, rank 3: the rows sum to 5; expected a multiple of top-k 2");
  negative[8 * 7 + 3] = -4;
  CHECK(refusal_of(with({1, 3, 4, 8, negative})) ==
        "recorded_counts.rows: step 0, layer 1, rank 3, expert 3: -4 rows; expected 0 to 2^48");
  const rows_t many(1 << 17, std::int64_t{1} << 48); // 2^65 in all
  CHECK(refusal_of(with({1, 1, 1, 1 << 17, many}), {}, {1 << 17, 2, 1, 1}) ==
        "recorded_counts.rows: step 0, layer 0, rank 0: the rows sum to more than 2^48 up to expert 1");
  rows_t small(7);
  CHECK(refusal([&] {
          routing_scenario(balanced{}, even_shares{}, {8, 2}).counts(0, {}, small);
        }) == "routing_scenario.counts: room for 7 experts; expected 8");
}
