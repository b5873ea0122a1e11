// SPDX-License-Identifier: Apache-2.0
//
// The model with the dispatch by rounds, and without logits, on the audited backend: every operation writes
// what it promises and reads nothing that it has not declared, in any order of the ranks' streams that their
// waits allow, with the bits of the host backend.
#include "chosen_peaks.hpp"
#include "model_cases.hpp"

#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace pl = plateau;
using moe::expert_placement;
using test::model_case;
using audited = support::in_turns<pl::audited_backend>;

namespace {

// Odd sizes, so that parts end between the eight bytes that the sanitizer tells apart.
reference::transformer_config odd_config(reference::index top_k) {
  reference::transformer_config c;
  c.vocabulary = 13;
  c.hidden = 18;
  c.layers = 2;
  c.heads = 3;
  c.kv_heads = 1;
  c.experts = 6;
  c.top_k = top_k;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}

template <class T> void no_complaint(test::step_setup setup, reference::index top_k) {
  setup.flatten = {.dispatch = true, .vocabulary = true};
  setup.loss = {4, 3, 3, top_k == 2 ? pl::rotation::activations : pl::rotation::weights};
  const auto c = model_case::make<T>(odd_config(top_k), 1, 3, 7);
  const auto expected = test::run_model_of<moe::chosen_peaks, T>(setup, c.config, c.weights, c.tokens());
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(setup.ranks);
    CAPTURE(setup.dispatch.slots);
    CAPTURE(seed);
    const auto actual = test::run_model_of<moe::chosen_peaks, T>(setup, c.config, c.weights, c.tokens(),
                                                                 audited{{seed, nullptr}});
    CHECK(test::same_bits(actual, expected));
  }
}

} // namespace

TEST_CASE("a step keeps the word of all its tags, whatever runs first") {
  no_complaint<float>({1, 1, 1, nullptr, true, {5, 5, 2, expert_placement::native, 0}}, 2);
  no_complaint<float>({2, 2, 2, nullptr, true, {4, 7, 3, expert_placement::least_loaded, 2}}, 3);
  no_complaint<float>({6, 3, 1, nullptr, true, {3, 3, 1, expert_placement::published, 0}}, 2);
}
TEST_CASE("so does one whose rows all go to one rank, and are taken off it") {
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:0.9,1"), 6, 2);
  for (const int slots : {1, 2, 3})
    no_complaint<float>({3, 3, 1, &forced, true, {6, 6, slots, expert_placement::least_loaded, 1}}, 2);
}
TEST_CASE("so does one in bf16") {
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:0.9,1"), 6, 2);
  no_complaint<pl::bfloat16>({3, 3, 1, &forced, true, {6, 6, 2, expert_placement::least_loaded, 1}}, 2);
}
