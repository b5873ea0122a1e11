// SPDX-License-Identifier: Apache-2.0
//
// Batches: a function of seed, step and index alone; training never touches what is held out; short texts.

#include "scratch_folder.hpp"
#include "token_sampler.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace moe;

namespace {

// A text whose tokens are their own positions, so that a sequence tells where it lies.
corpus counting_text(std::int64_t size) {
  corpus text;
  text.name = "counting";
  text.tokens.resize(static_cast<std::size_t>(size));
  std::iota(text.tokens.begin(), text.tokens.end(), 0);
  return text;
}

} // namespace

TEST_CASE("held-out tokens are never trained on, all others are, for every length of text") {
  for (const std::int64_t context : {1, 4, 9})
    for (std::int64_t size = 2 * (context + 1); size < 40 * (context + 1); size += 1 + size / 7) {
      const corpus text = counting_text(size);
      const token_sampler sampler{text, context, 3};
      std::vector<int> held(static_cast<std::size_t>(size)), trained(static_cast<std::size_t>(size));
      REQUIRE(sampler.held_out_sequences() >= 1);
      for (std::int64_t i = 0; i < sampler.held_out_sequences(); ++i) {
        const auto sequence = sampler.held_out(i);
        REQUIRE(static_cast<std::int64_t>(sequence.size()) == context + 1);
        for (const auto token : sequence) REQUIRE(++held[static_cast<std::size_t>(token)] == 1);
      }
      for (std::int64_t step = 0; step < 400; ++step)
        for (std::int64_t index = 0; index < 16; ++index) {
          const auto sequence = sampler.sequence(step, index);
          REQUIRE(static_cast<std::int64_t>(sequence.size()) == context + 1);
          for (std::size_t t = 0; t < sequence.size(); ++t) REQUIRE(sequence[t] == sequence[0] + int(t));
          for (const auto token : sequence) ++trained[static_cast<std::size_t>(token)];
        }
      std::int64_t tail = 0; // a last stretch too short for a sequence
      for (std::size_t t = 0; t < trained.size(); ++t) {
        REQUIRE((held[t] == 0 || trained[t] == 0));
        tail = held[t] == 0 && trained[t] == 0 ? tail + 1 : 0;
        REQUIRE(tail <= context);
      }
    }
}

TEST_CASE("a sequence depends on seed, step and index, and on nothing else") {
  const corpus text = counting_text(100'000);
  const token_sampler a{text, 16, 1}, b{text, 16, 1}, c{text, 16, 2};
  int same_seed = 0, same_step = 0, same_index = 0;
  for (std::int64_t step = 0; step < 50; ++step)
    for (std::int64_t index = 0; index < 20; ++index) {
      REQUIRE(a.sequence(step, index).data() == b.sequence(step, index).data());
      same_seed += a.sequence(step, index).data() == c.sequence(step, index).data();
      same_step += a.sequence(step, index).data() == a.sequence(step + 1, index).data();
      same_index += a.sequence(step, index).data() == a.sequence(step, index + 1).data();
    }
  CHECK(same_seed < 5);
  CHECK(same_step < 5);
  CHECK(same_index < 5);
  CHECK(a.sequence(3, 0)[0] != a.sequence(0, 3)[0]); // step and index are not interchangeable
}

TEST_CASE("starts are spread evenly over the text") {
  const corpus text = counting_text(64'000);
  const token_sampler sampler{text, 9, 5};
  std::vector<int> counts(8);
  for (std::int64_t step = 0; step < 1000; ++step)
    for (std::int64_t index = 0; index < 8; ++index)
      ++counts[static_cast<std::size_t>(sampler.sequence(step, index)[0] / 8000)];
  for (const int count : counts) CHECK(std::abs(count - 1000) < 150); // five standard deviations
}

TEST_CASE("a large text evaluates a bounded number of held-out sequences from all over it") {
  const corpus text = counting_text(1'000'000);
  const token_sampler sampler{text, 9, 5};
  CHECK(sampler.held_out_sequences() == 256);
  CHECK(sampler.held_out(0)[0] < 1000);
  CHECK(sampler.held_out(255)[0] > 990'000);
}

TEST_CASE("a text shorter than two sequences is refused with the number that is needed") {
  const corpus text = counting_text(257);
  const auto message = moe_test::message_of<input_error>([&] { token_sampler{text, 128, 1}; });
  CHECK(moe_test::has(message, "counting: 257 tokens; expected at least 258"));
  const corpus enough = counting_text(258);
  CHECK(token_sampler{enough, 128, 1}.held_out_sequences() == 1);
}
