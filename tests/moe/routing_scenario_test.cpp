// SPDX-License-Identifier: Apache-2.0
//
// Forced routing: distinct experts where the scenario has them, exact shares, and refusals of what cannot be.

#include "routing_scenario.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <variant>
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
  CHECK(refusal("rotating:0.5,9") ==
        "--routing rotating:0.5,9: expected at most as many hot experts as --experts (8)");
  CHECK(has(refusal("hot:0.5,8"),
            "--routing hot:0.5,8: hot.fraction_millionths: 500000; expected 1000000, since "
            "all 8 experts are hot"));
  CHECK(has(refusal("rotating:2,2"), "--routing rotating:FRACTION,EXPERTS: expected a number from 0 to 1"));
  for (const char* text :
       {"rotating", "rotating:0.5", "counts", "counts:", "ragged:1", "zero-rank", "balanced+",
        "balanced+hot:0.5,2", "ragged+ragged", "+ragged", "ragged+zero-rank:1"})
    CHECK(has(refusal(text), "rotating:FRACTION,EXPERTS or counts:FILE, or ragged or zero-rank:RANK"));
  CHECK(has(refusal("zero-rank:-1"), "--routing zero-rank:RANK: expected a whole number from 0"));
  CHECK(message_of<input_error>([] { check_shares(parse_routing("--routing", "learned+zero-rank:4"), 4); }) ==
        "--routing learned+zero-rank:4: zero_rank.rank: 4 does not exist; expected 0 to 3, of 4 ranks");
}

TEST_CASE("how tokens are dealt stands alone, or behind a '+'") {
  const auto of = [](const char* text) { return parse_routing("--routing", text); };
  CHECK(std::holds_alternative<pl::routing::even_shares>(of("hot:0.5,2").shares));
  CHECK(std::holds_alternative<pl::routing::ragged>(of("ragged").shares));
  CHECK(std::holds_alternative<pl::routing::balanced>(of("ragged").routes.value()));
  CHECK(std::holds_alternative<pl::routing::balanced>(of("zero-rank:3").routes.value()));
  CHECK(std::get<pl::routing::zero_rank>(of("zipf:1+zero-rank:3").shares).rank == 3);
  CHECK(std::get<pl::routing::zipf>(of("zipf:1+zero-rank:3").routes.value()).exponent == 1);
  CHECK(std::holds_alternative<pl::routing::ragged>(of("learned+ragged").shares));
  CHECK_FALSE(of("learned+ragged").forced());
  CHECK(std::get<pl::routing::rotating>(of("rotating:0.25,3+ragged").routes.value()).fraction_millionths ==
        250'000);
  CHECK(of("rotating:0.25,3+ragged").text == "rotating:0.25,3+ragged");
}

TEST_CASE("where hot experts are too few for a token's routes, they repeat, and the report says so") {
  const auto sentence = [](const char* text, std::int64_t experts, std::int64_t top_k) {
    return forced_routing(parse_routing("--routing", text), experts, top_k).repeats_sentence();
  };
  CHECK(sentence("hot:0.95,4", 128, 8) ==
        "hot:0.95,4 with top-k 8 repeats experts within a token: 7.6 of its 8 routes go to 4 experts");
  CHECK(sentence("hot:0.1,7", 8, 2) ==
        "hot:0.1,7 with top-k 2 repeats experts within a token: 1.8 of its 2 routes go to 1 expert");
  for (const char* text : {"balanced", "all-to-one", "zipf:2", "ragged", "hot:0.5,4"})
    CHECK(sentence(text, 128, 8).empty());
  const forced_routing routing(parse_routing("--routing", "hot:0.9,1"), 8, 2);
  std::int64_t hot = 0;
  for (std::int64_t token = 0; token < 100; ++token)
    for (std::int64_t slot = 0; slot < 2; ++slot) hot += routing.expert(0, token, slot) == 0;
  CHECK(hot == 180);
}

TEST_CASE("counts from a file are forced on the rank that they are of, and must fit the run") {
  const moe_test::scratch_folder folder;
  const std::string path = folder.file("a+b.csv");
  moe_test::write_file(path, "step,layer,rank,expert,rows\n0,0,0,1,3\n0,0,0,0,1\n0,0,1,0,4\n");
  const routing_scenario read = parse_routing("--routing", "counts:" + path);
  CHECK(read.file == path);
  const forced_routing routing(read, 3, 2, 1, 3); // expert 2 and rank 2 get nothing
  counts rows(3);
  routing.scenario().counts(0, {0, 1, 2, 0, 2}, rows);
  CHECK(rows == counts{4, 0, 0});
  routing.scenario().counts(0, {0, 2, 4, 0, 0}, rows);
  CHECK(rows == counts{0, 0, 0});
  CHECK(routing.expert(0, 0, 0) == 0);
  CHECK(routing.expert(0, 1, 0) == 1);
  CHECK(routing.repeats_sentence() ==
        "counts:" + path +
            " with top-k 2 repeats experts within a token: step 0, layer 0, rank "
            "0: 3 rows of 2 tokens go to expert 1");
  routing.check_tokens(0, 2);
  const std::string flag = "--routing counts:" + path + ": ";
  CHECK(
      message_of<input_error>([&] { routing.check_tokens(2, 1); }) ==
      flag +
          "recorded_counts.rows: step 0, layer 0, rank 2: the rows sum to 0; expected 2, 1 tokens x top-k 2");
  const auto misfit = [&](std::int64_t experts, std::int64_t top_k, std::int64_t layers, std::int64_t ranks) {
    return message_of<input_error>([&] { forced_routing(read, experts, top_k, layers, ranks); });
  };
  CHECK(misfit(1, 1, 1, 2) == flag + "recorded_counts.experts: 2; expected 1");
  CHECK(misfit(2, 1, 1, 1) == flag + "recorded_counts.ranks: 2; expected 1");
  CHECK(
      has(misfit(3, 3, 1, 2), "step 0, layer 0, rank 0: the rows sum to 4; expected a multiple of top-k 3"));
  CHECK(std::holds_alternative<pl::routing::ragged>(
      parse_routing("--routing", "counts:" + path + "+ragged").shares));
  CHECK(has(message_of<input_error>([&] { parse_routing("--routing", "counts:" + path + ".no"); }),
            "a+b.csv.no: cannot be read"));
}
