// SPDX-License-Identifier: Apache-2.0
//
// A linear cross-entropy under any order of the operations of all ranks, and with each operation taken at its
// word: the bits of the host backend.
#include "support/ring_cases.hpp"

#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace pl = plateau;
using pl::index_t, pl::rotation;
using support::ring_case, support::values_of, support::run_ring;

namespace {

// One tile in flight, two, states of fixed blocks, and one pass on one rank.
constexpr int modes = 4;

ring_case case_of(rotation r, int mode) {
  ring_case c;
  c.tokens = {5, 0, 9};
  c.shards = {7, 4, 0};
  c.shape.hidden = 3;
  c.shape.tile = {3, 4};
  c.shape.hop_rows = 4;
  c.shape.rotate = r;
  c.shape.bias = true;
  c.shape.options.smoothing = 0.125F;
  c.shape.options.soft_cap = 3;
  c.class_weights = c.token_weights = true;
  c.spare = 2;
  if (mode == 1 || mode == 2) c.shape.tiles_in_flight = 2;
  if (mode == 2) {
    c.shards = {8, 0, 3};
    c.shape.fixed_block = 4;
    c.shape.entropy = c.shape.argmax = c.shape.accuracy = true;
  }
  if (mode == 3) {
    c.tokens = {14}, c.shards = {11};
    c.shape.one_pass = true;
    c.shape.strip_rows = 5;
  }
  return c;
}

} // namespace

TEST_CASE("the same bits under any order of operations") {
  for (int i = 0; i < 2 * modes; ++i) {
    CAPTURE(i);
    const ring_case c = case_of(i % 2 == 0 ? rotation::activations : rotation::weights, i / 2);
    const auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, support::on_threads<>{});
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      CHECK(same_bits(run_ring<float>(c, values, support::in_turns<>{{seed, nullptr}}), expected));
    }
  }
}

TEST_CASE("every operation keeps the word of its tags") {
  for (int i = 0; i < 2 * modes; ++i) {
    CAPTURE(i);
    const ring_case c = case_of(i % 2 == 0 ? rotation::activations : rotation::weights, i / 2);
    const auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, support::on_threads<>{});
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      CHECK(same_bits(run_ring<float>(c, values, support::in_turns<pl::audited_backend>{{seed, nullptr}}),
                      expected));
    }
  }
}
