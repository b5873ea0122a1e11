// SPDX-License-Identifier: Apache-2.0
//
// Which tokens a step trains on, and which are never trained on. A sequence depends on the seed, the step and
// its number within the step alone, so the same run on any number of ranks, with any shares and any
// accumulation, sees the same tokens. The text is cut into blocks of context + 1 tokens and every 16th block
// is held out (of a shorter text its last): spread over the text, since a tail would hold out a single
// document, and the same for every batch and seed. Training sequences start anywhere in between, but never
// touch a held-out block. Texts that repeat themselves, as licences do, make the held-out loss easier; it is
// comparable between runs of the same context.
#pragma once

#include "corpus.hpp"
#include "input_error.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace moe {

class token_sampler {
 public:
  static constexpr std::int64_t held_out_every = 16;  // blocks
  static constexpr std::int64_t held_out_limit = 256; // sequences evaluated, evenly spread

  // The corpus must outlive the sampler. Throws input_error when it is shorter than two sequences.
  token_sampler(const corpus& text, std::int64_t context, std::uint64_t seed)
      : tokens_{text.tokens}, length_{context + 1}, seed_{seed} {
    const auto size = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t blocks = size / length_;
    if (blocks < 2)
      throw input_error{
          fmt::format("{}: {} tokens; expected at least {}, one sequence of --context {} + 1 to train on "
                      "and one held out",
                      shown(text.name), size, 2 * length_, context)};
    held_out_blocks_ = std::max<std::int64_t>(1, blocks / held_out_every);
    first_held_out_ = std::min(blocks, held_out_every) - 1;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i <= held_out_blocks_; ++i) {
      const std::int64_t end = i < held_out_blocks_ ? held_out_begin(i) : size;
      if (end - begin >= length_) {
        regions_.push_back({begin, starts_});
        starts_ += end - begin - length_ + 1;
      }
      begin = end + length_;
    }
  }

  token_sampler(corpus&&, std::int64_t, std::uint64_t) = delete;

  // Sequence `index` of `step`, counted over all ranks and micro-batches of the step: context + 1 tokens, of
  // which the first `context` are inputs and the last `context` are targets. Thread-safe.
  std::span<const std::int32_t> sequence(std::int64_t step, std::int64_t index) const {
    const std::uint64_t key =
        mixed(mixed(mixed(seed_) ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(index));
    const auto start = static_cast<std::int64_t>(key % static_cast<std::uint64_t>(starts_));
    const auto after =
        std::upper_bound(regions_.begin(), regions_.end(), start,
                         [](std::int64_t value, const region& r) { return value < r.starts_before; });
    const region& inside = *(after - 1);
    return at(inside.begin + start - inside.starts_before);
  }

  // Held-out sequences to evaluate, of context + 1 tokens each. Thread-safe.
  std::int64_t held_out_sequences() const { return std::min(held_out_blocks_, held_out_limit); }
  std::span<const std::int32_t> held_out(std::int64_t index) const {
    return at(held_out_begin(index * held_out_blocks_ / held_out_sequences()));
  }

 private:
  struct region { // tokens between two held-out blocks
    std::int64_t begin;
    std::int64_t starts_before; // sequence starts in all regions before this one
  };

  std::span<const std::int32_t> at(std::int64_t token) const {
    return tokens_.subspan(static_cast<std::size_t>(token), static_cast<std::size_t>(length_));
  }

  std::int64_t held_out_begin(std::int64_t index) const {
    return (first_held_out_ + index * held_out_every) * length_;
  }

  // The finaliser of splitmix64: every bit of the result depends on every bit of the argument.
  static std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

  std::span<const std::int32_t> tokens_;
  std::int64_t length_ = 0; // context + 1
  std::uint64_t seed_ = 0;
  std::int64_t held_out_blocks_ = 0, first_held_out_ = 0;
  std::int64_t starts_ = 0;
  std::vector<region> regions_;
};

} // namespace moe
