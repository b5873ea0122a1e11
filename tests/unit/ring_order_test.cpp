// SPDX-License-Identifier: Apache-2.0
//
// A linear cross-entropy under the order check of the dry run: nothing is unordered, every wait that is left
// out is missed, and an operation that fails, whichever it is, ends all ranks and leaks nothing.
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::rotation;
using support::ring_case;

namespace {

// Two rounds, three ranks, all of them with rows in each; two steps.
ring_case small_case(rotation rotate, int tiles_in_flight = 2) {
  ring_case c;
  c.tokens = {7, 8, 6};
  c.shards = {6, 7, 8};
  c.shape.hidden = 3;
  c.shape.tile = {4, 3};
  c.shape.hop_rows = 4;
  c.shape.rotate = rotate;
  c.shape.tiles_in_flight = tiles_in_flight;
  c.shape.bias = true;
  c.steps = 2;
  return c;
}
struct outcome {
  pl::dry_ranks ran;
  std::vector<std::size_t> left;
};
outcome dry(const ring_case& c, const pl::dry_options& faults = {}) {
  outcome out;
  const support::without_data<> on{faults, &out.ran};
  out.left = run_ring<float>(c, support::ring_values<float>(values_of<float>(c)), on).left;
  return out;
}

} // namespace

TEST_CASE("every wait of the rotation, and of two tiles in flight, is missed where it is left out") {
  for (int i = 0; i < 5; ++i) {
    const rotation r = i % 2 == 0 ? rotation::activations : rotation::weights;
    const int tiles = 1 + i / 2;
    CAPTURE(i);
    ring_case c = small_case(r, std::min(tiles, 2));
    if (i == 4) c.shape.tile = {2, 30}, c.steps = 1; // where sums over columns meet
    const outcome whole = dry(c);
    REQUIRE_FALSE(whole.ran.cause.has_value());
    for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
    std::map<std::string, int> missed, spared; // waits by place
    const std::uint64_t waits = whole.ran.recorders[1]->waits();
    for (std::uint64_t k = 0; k < waits; ++k) {
      CAPTURE(k);
      pl::dry_options options;
      options.drop_wait = k;
      options.only_rank = 1;
      const outcome with = dry(c, options);
      REQUIRE_FALSE(with.ran.cause.has_value());
      for (const std::size_t other : {0, 2}) CHECK(with.ran.recorders[other]->found() == 0);
      REQUIRE(with.ran.recorders[1]->dropped().has_value());
      const std::string place = with.ran.recorders[1]->dropped()->text();
      ++(with.ran.findings().empty() ? spared : missed)[place.substr(place.rfind('/') + 1)];
    }
    // None can be spared but those of the test itself, which come after others, and those that close a step.
    int of_rotation = 0, of_tiles = 0;
    for (const auto& [place, n] : missed) {
      of_rotation += place.find("ring_reduce.hpp") == 0 ? n : 0;
      of_tiles += place.find("cross_entropy_step.hpp") == 0 ? n : 0;
    }
    constexpr int rotations[] = {60, 52, 60, 52, 30}, in_flight[] = {0, 0, 72, 84, 25};
    CHECK(of_rotation == rotations[i]);
    CHECK(of_tiles == in_flight[i]);
    for (const auto& each : spared) {
      const std::string& place = each.first;
      CAPTURE(place);
      CHECK((place.find("drain.hpp") == 0 || place.find("close_step.hpp") == 0));
    }
  }
}

TEST_CASE("fewer tokens, none, no shard, one rank, every option: nothing is read that was never written") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (int i = 0; i < 10; ++i) {
      CAPTURE(i);
      ring_case c = small_case(r);
      if (i == 0) c.fewer_first = true;
      if (i == 1) c.tokens = {7, 0, 13}, c.shards = {0, 7, 14};
      if (i == 2) c.tokens = {17}, c.shards = {19};
      if (i == 3) c.tokens = {0, 0}, c.shards = {5, 0};
      if (i == 4) c.shape.frozen_inputs = true, c.forwards = 2, c.backwards = 2;
      if (i == 5) c.shape.frozen_weights = true;
      if (i == 6) c.shape.tile = {2, 30}; // sums over columns meet
      if (i >= 7) c.tokens = {17}, c.shards = {19}, c.shape.strip_rows = 5;
      if (i >= 8) c.shape.one_pass = true, c.shape.tiles_in_flight = 1, c.in_place = i == 9;
      if (i == 7)
        c.shards = {8, 0, 11}, c.tokens = {9, 8, 2}, c.shape.fixed_block = 4, c.shape.entropy = true;
      if (i % 2 == 1) {
        c.shape.options.smoothing = 0.25F;
        c.shape.options.soft_cap = 5;
      }
      const outcome ran = dry(c);
      REQUIRE_FALSE(ran.ran.cause.has_value());
      for (const std::string& each : ran.ran.findings()) FAIL_CHECK(each);
    }
}

TEST_CASE("an operation that fails, whichever it is, ends all ranks with that cause, and nothing leaks") {
  for (const rotation r : {rotation::activations, rotation::weights}) {
    const ring_case c = small_case(r);
    const outcome whole = dry(c);
    const std::uint64_t operations = whole.ran.recorders[1]->operations();
    REQUIRE(operations > 200);
    for (std::uint64_t k = 0; k < operations; k += 1 + k % 5) {
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = 1;
      const outcome with = dry(c, options);
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
}
