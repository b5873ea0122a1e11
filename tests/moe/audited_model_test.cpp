// SPDX-License-Identifier: Apache-2.0
//
// The model and its optimizer on the audited backend: every operation of a step writes what it promises,
// reads nothing that it has not declared, and touches no other memory where the address sanitizer is compiled
// in; and all of it has the bits of the host backend.
#include "model_cases.hpp"
#include "trainer_on_ranks.hpp"

#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace pl = plateau;
using test::model_case;
using audited = support::in_turns<pl::audited_backend>;

namespace {

// Odd sizes, so that parts end between the eight bytes that the sanitizer tells apart.
reference::transformer_config odd_config() {
  reference::transformer_config c;
  c.vocabulary = 13;
  c.hidden = 18;
  c.layers = 2;
  c.heads = 3;
  c.kv_heads = 1;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}

template <class T> void no_complaint(const test::step_setup& setup, const reference::transformer_config& of) {
  const auto c = model_case::make<T>(of, 1, 3, 7);
  const auto expected = test::run_model<T>(setup, c.config, c.weights, c.tokens());
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(setup.ranks);
    CAPTURE(seed);
    const auto actual = test::run_model<T>(setup, c.config, c.weights, c.tokens(), audited{{seed, nullptr}});
    CHECK(test::same_bits(actual, expected));
  }
}

} // namespace

TEST_CASE("a step keeps the word of all its tags") {
  auto config = odd_config();
  no_complaint<float>({1, 1, 1, nullptr, true}, config);
  no_complaint<float>({4, 2, 2, nullptr, true}, config);
  config.tied = true;
  no_complaint<float>({2, 2, 1, nullptr, true}, config);
}
TEST_CASE("so does one with forced routing, and one that has only losses") {
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:0.75,1"), 4, 2);
  no_complaint<float>({2, 2, 1, &forced, true}, odd_config());
  no_complaint<float>({2, 1, 1, nullptr, false}, odd_config());
}

TEST_CASE("D3: the optimizer's step does too, and so do ranks that have no tokens") {
  test::training_case c = test::tiny_case({4, 2});
  c.config.layers = 1;
  c.config.experts = 4;
  c.settings.context = 5;
  c.settings.batch = 2;
  const moe::corpus text = test::random_text(c.config.vocabulary, 300, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto two_steps = [&](const auto& on) {
    std::vector<test::state_values> states(4);
    test::train_on_ranks<float>(
        c,
        [&](auto& train) {
          for (int step = 0; step < 2; ++step) train.run_step(sampler, step);
          states[static_cast<std::size_t>(train.world().rank())] = test::state_of(train);
        },
        on);
    return states;
  };
  const auto expected = two_steps(support::on_threads<>{}), actual = two_steps(audited{{3, nullptr}});
  for (std::size_t rank = 0; rank < 4; ++rank) CHECK(test::same_bits(actual[rank], expected[rank]));
}
