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

ring_case case_of(rotation r) {
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
  return c;
}

} // namespace

TEST_CASE("the same bits under any order of operations") {
  for (const rotation r : {rotation::activations, rotation::weights}) {
    const ring_case c = case_of(r);
    const auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, support::on_threads<>{});
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      CHECK(same_bits(run_ring<float>(c, values, support::in_turns<>{{seed, nullptr}}), expected));
    }
  }
}

TEST_CASE("every operation keeps the word of its tags") {
  for (const rotation r : {rotation::activations, rotation::weights}) {
    const ring_case c = case_of(r);
    const auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, support::on_threads<>{});
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      CHECK(same_bits(run_ring<float>(c, values, support::in_turns<pl::audited_backend>{{seed, nullptr}}),
                      expected));
    }
  }
}
