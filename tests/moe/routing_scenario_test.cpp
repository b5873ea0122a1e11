// SPDX-License-Identifier: Apache-2.0
//
// Forced routing: distinct experts for every token, exact shares, and refusals that name the possible range.

#include "routing_scenario.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace moe;
using moe_test::has;
using moe_test::message_of;

namespace {

// Routes to each expert over `tokens` tokens; requires that the experts of each token are distinct and in
// range.
std::vector<std::int64_t> counts_of(const std::string& text, std::int64_t experts, std::int64_t top_k,
                                    std::int64_t tokens, std::int64_t layer = 0, std::int64_t first = 0) {
  const forced_routing routing{parse_routing("--routing", text), experts, top_k};
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts)), last(counts.size(), -1);
  for (std::int64_t token = first; token < first + tokens; ++token)
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      const std::int64_t expert = routing.expert(layer, token, slot);
      REQUIRE((expert >= 0 && expert < experts));
      REQUIRE(last[static_cast<std::size_t>(expert)] != token);
      last[static_cast<std::size_t>(expert)] = token;
      ++counts[static_cast<std::size_t>(expert)];
    }
  return counts;
}

using counts = std::vector<std::int64_t>;

std::string refusal(const std::string& text, std::int64_t experts = 8, std::int64_t top_k = 2) {
  return message_of<input_error>([&] { forced_routing{parse_routing("--routing", text), experts, top_k}; });
}

} // namespace

TEST_CASE("balanced gives every expert the same, in every layer") {
  for (const std::int64_t top_k : {1, 2, 3, 8})
    for (const std::int64_t layer : {0, 1, 5})
      CHECK(counts_of("balanced", 8, top_k, 80, layer) == counts(8, 10 * top_k));
}

TEST_CASE("all-to-one sends every token to the first experts") {
  CHECK(counts_of("all-to-one", 8, 2, 50) == counts{50, 50, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("hot gives the hot experts their exact fraction of the routes, evenly") {
  CHECK(counts_of("hot:0.5,1", 8, 2, 70) == counts{70, 10, 10, 10, 10, 10, 10, 10});
  CHECK(counts_of("hot:0.75,2", 8, 2, 400) == counts{300, 300, 33 + 1, 33 + 1, 33, 33, 33, 33});
  CHECK(counts_of("hot:1,2", 8, 2, 9) == counts{9, 9, 0, 0, 0, 0, 0, 0});
  CHECK(counts_of("hot:1,8", 8, 2, 80) == counts(8, 20));
  CHECK(counts_of("hot:0,4", 8, 2, 80) == counts{0, 0, 0, 0, 40, 40, 40, 40});
  CHECK(counts_of("hot:0.3,16", 128, 8, 1000)[15] == 150);
  for (std::int64_t tokens = 1; tokens < 300; ++tokens) {
    const auto got = counts_of("hot:0.3,3", 8, 2, tokens);
    REQUIRE(got[0] + got[1] + got[2] == tokens * 2 * 3 / 10); // the floor, after any number of tokens
  }
}

TEST_CASE("far into a run the shares are still exact") {
  const auto got = counts_of("hot:0.333333,3", 8, 2, 1000, 0, std::int64_t{1} << 44);
  const std::int64_t hot = got[0] + got[1] + got[2];
  CHECK((hot == 666 || hot == 667));
}

TEST_CASE("zipf follows its law, with no expert above one slot of a token") {
  const auto got = counts_of("zipf:1", 8, 1, 100'000);
  double sum = 0;
  for (int e = 1; e <= 8; ++e) sum += 1.0 / e;
  for (std::size_t e = 0; e < 8; ++e)
    CHECK(std::abs(static_cast<double>(got[e]) - 100'000 / (static_cast<double>(e + 1) * sum)) < 30);
  const auto even = counts_of("zipf:0", 8, 3, 80'000, 4);
  for (const auto count : even) CHECK(std::abs(count - 30'000) < 30);
  const auto steep = counts_of("zipf:16", 64, 4, 1000);
  for (std::size_t e = 0; e < 3; ++e) CHECK(steep[e] == 1000); // capped: each token's first three experts
  CHECK(steep[3] > 950);
  CHECK(counts_of("zipf:2", 4, 4, 100) == counts(4, 100));
  CHECK(counts_of("zipf:5", 65536, 8, 100).size() == 65536);
}

TEST_CASE("what cannot be is refused with the possible range") {
  CHECK_FALSE(parse_routing("--routing", "learned").forced());
  for (const char* text :
       {"", "hot", "hot:", "hot:0.5", "balanced:1", "all-to-one:", "zipf", "learned:2", "Balanced"})
    CHECK(has(refusal(text),
              "--routing: expected learned, balanced, hot:FRACTION,EXPERTS, all-to-one or zipf:S"));
  CHECK(has(refusal("hot:1.5,2"), "expected a number from 0 to 1, got '1.5'"));
  CHECK(has(refusal("hot:nan,2"), "got 'nan'"));
  CHECK(has(refusal("hot:0.5,0"), "expected a whole number from 1"));
  CHECK(has(refusal("hot:0.5,2,3"), "got '2,3'"));
  CHECK(has(refusal("zipf:-1"), "from 0 to 16"));
  CHECK(has(refusal("hot:0.5,9"), "at most as many hot experts as --experts (8)"));
  CHECK(has(refusal("hot:0.9,1"), "from 0 to 0.5 for 1 of 8 experts"));
  CHECK(has(refusal("hot:0.1,7"), "from 0.5 to 1 for 7 of 8 experts"));
  CHECK(has(refusal("hot:0.5,8"), "from 1 to 1"));
}
