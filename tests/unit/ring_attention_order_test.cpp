// SPDX-License-Identifier: Apache-2.0
//
// A ring attention under the order check of the dry run: nothing is unordered, every wait that is left out is
// missed, and an operation that fails, whichever it is, ends all ranks and leaks nothing. And under any order
// of the operations of all ranks, and with each taken at its word: the bits of the host backend.
#include "support/attention_cases.hpp"
#include "support/plain_attention.hpp"

#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::attention_mask, pl::sequence_split;
using support::attention_case, support::values_of, support::run_attention;

namespace {

// Three ranks, all of them with rows in each of two rounds or more.
template <class T> attention_case small_case() {
  attention_case c;
  c.split = sequence_split::balanced(22, 3);
  c.shape.heads = 2;
  c.shape.kv_heads = sizeof(T) == 4 ? 1 : 2;
  c.shape.head_size = 3;
  c.shape.tile = {4, 5, 1};
  c.shape.hop_rows = 5;
  c.cu_seqlens = {0, 9, 22};
  return c;
}
attention_case odd_case(int i) {
  attention_case c = small_case<float>();
  if (i == 0) c.shape.mask = attention_mask::full;
  if (i == 1) c.split = sequence_split::of(15, {{{9, 6}}, {}, {{0, 9}}}), c.cu_seqlens = {};
  if (i == 2) c.shape.hidden_keys = true, c.hide_every = 2;
  if (i == 3) c.shape.forward_only = true;
  if (i == 4) c.split = sequence_split::contiguous(22, 1), c.forwards = 2, c.backwards = 2;
  if (i == 5) c.split = sequence_split::contiguous(0, 3), c.cu_seqlens = {};
  if (i == 6)
    c.split = sequence_split::balanced(24, 3), c.steps = 2, c.shorter_first = true, c.cu_seqlens = {};
  c.spare = 1;
  return c;
}
constexpr int odd_cases = 7;

struct outcome {
  pl::dry_ranks ran;
  std::vector<std::size_t> left;
};
template <class T, class Kernel = pl::attention_by_gemm>
outcome dry(const attention_case& c, const pl::dry_options& faults = {}) {
  outcome out;
  const support::without_data<> on{faults, &out.ran};
  support::attention_values<T> none;
  if (c.shape.hidden_keys) none.hidden.assign(static_cast<std::size_t>(c.tokens()), 0);
  out.left = run_attention<T, Kernel>(c, none, on).left;
  return out;
}

} // namespace

TEST_CASE("every wait of the rotation is missed where it is left out") {
  attention_case c = small_case<pl::bfloat16>();
  c.shape.mask = attention_mask::full; // every block is read; one that nobody sees could come early
  c.cu_seqlens = {};
  c.steps = 2;
  const outcome whole = dry<pl::bfloat16>(c);
  REQUIRE_FALSE(whole.ran.cause.has_value());
  for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
  std::map<std::string, int> missed, spared; // waits by place
  const std::uint64_t waits = whole.ran.recorders[1]->waits();
  for (std::uint64_t k = 0; k < waits; ++k) {
    CAPTURE(k);
    pl::dry_options options;
    options.drop_wait = k;
    options.only_rank = 1;
    const outcome with = dry<pl::bfloat16>(c, options);
    REQUIRE_FALSE(with.ran.cause.has_value());
    for (const std::size_t other : {0, 2}) CHECK(with.ran.recorders[other]->found() == 0);
    REQUIRE(with.ran.recorders[1]->dropped().has_value());
    const std::string place = with.ran.recorders[1]->dropped()->text();
    ++(with.ran.findings().empty() ? spared : missed)[place.substr(place.rfind('/') + 1)];
  }
  // None can be spared but those of the test itself, which come after others, and those that close a step.
  int of_rotation = 0;
  for (const auto& [place, n] : missed) of_rotation += place.find("ring_reduce.hpp") == 0 ? n : 0;
  CHECK(of_rotation == 52);
  for (const auto& each : spared) {
    const std::string& place = each.first;
    CAPTURE(place);
    CHECK((place.find("drain.hpp") == 0 || place.find("close_step.hpp") == 0));
  }
}

TEST_CASE("full, empty, hidden, alone, shorter: nothing is read that was never written") {
  for (int i = 0; i < odd_cases; ++i) {
    CAPTURE(i);
    for (const outcome& ran : {dry<float>(odd_case(i)), dry<pl::bfloat16>(odd_case(i))}) {
      REQUIRE_FALSE(ran.ran.cause.has_value());
      for (const std::string& each : ran.ran.findings()) FAIL_CHECK(each);
    }
  }
}

TEST_CASE("a kernel of the user's: every wait of the rotation guards what it reads, and the bits are the "
          "same in any order") {
  using support::plain_attention;
  attention_case c = small_case<float>();
  c.shape.mask = attention_mask::full;
  c.shape.hidden_keys = true, c.hide_every = 2;
  c.cu_seqlens = {};
  const outcome whole = dry<float, plain_attention>(c);
  REQUIRE_FALSE(whole.ran.cause.has_value());
  for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
  for (std::uint64_t k = 0; k < whole.ran.recorders[1]->waits(); ++k) {
    CAPTURE(k);
    pl::dry_options options;
    options.drop_wait = k;
    options.only_rank = 1;
    const outcome with = dry<float, plain_attention>(c, options);
    REQUIRE(with.ran.recorders[1]->dropped().has_value());
    const std::string place = with.ran.recorders[1]->dropped()->text();
    CAPTURE(place);
    if (place.find("/ring_reduce.hpp") != std::string::npos) CHECK_FALSE(with.ran.findings().empty());
  }
  const auto values = values_of<float>(c);
  const auto expected = run_attention<float, plain_attention>(c, values, support::on_threads<>{});
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    CHECK(same_bits(run_attention<float, plain_attention>(c, values, support::in_turns<>{{seed, nullptr}}),
                    expected));
  }
}

TEST_CASE("an operation that fails, whichever it is, ends all ranks with that cause, and nothing leaks") {
  const attention_case c = small_case<float>();
  const std::uint64_t operations = dry<float>(c).ran.recorders[1]->operations();
  REQUIRE(operations > 100);
  for (std::uint64_t k = 0; k < operations; k += 1 + k % 5) {
    CAPTURE(k);
    pl::dry_options options;
    options.throw_at = k;
    options.only_rank = 1;
    const outcome with = dry<float>(c, options);
    REQUIRE(with.ran.cause.has_value());
    const std::string text = "operation " + std::to_string(k) + " fails, as the dry run was told";
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      const auto& end = with.ran.left_with[rank];
      REQUIRE(end.has_value());
      CHECK(end->text.find(text) != std::string::npos);
      CHECK(with.left[rank] == 0);
    }
    for (const std::string& each : with.ran.findings()) FAIL_CHECK(each);
  }
}

TEST_CASE("the same bits under any order of operations, and with every operation at its word") {
  for (const int i : {1, 2, 4, 6}) {
    CAPTURE(i);
    const attention_case c = odd_case(i);
    const auto values = values_of<float>(c);
    const auto expected = run_attention<float>(c, values, support::on_threads<>{});
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      CAPTURE(seed);
      CHECK(same_bits(run_attention<float>(c, values, support::in_turns<>{{seed, nullptr}}), expected));
    }
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      CHECK(
          same_bits(run_attention<float>(c, values, support::in_turns<pl::audited_backend>{{seed, nullptr}}),
                    expected));
    }
  }
  attention_case c = small_case<pl::bfloat16>();
  const auto values = values_of<pl::bfloat16>(c);
  const auto expected = run_attention<pl::bfloat16>(c, values, support::on_threads<>{});
  for (std::uint64_t seed = 0; seed < 5; ++seed)
    CHECK(same_bits(
        run_attention<pl::bfloat16>(c, values, support::in_turns<pl::audited_backend>{{seed, nullptr}}),
        expected));
}
