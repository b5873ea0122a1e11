// SPDX-License-Identifier: Apache-2.0
//
// The limits and options of a linear cross-entropy: what is known before there is an input, which of them
// cannot work, and what all ranks must agree on.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/scalar.hpp>

#include <string>

namespace plateau::inline v0 {

struct cross_entropy_shape {
  index_t tokens = 0; // of a rank, at most: any number up to it, another one each step
  index_t hidden = 0;
  index_t vocabulary = 0; // of all ranks together
  struct tile_extent {
    index_t tokens = 1024, vocabulary = 2048;
  } tile{};                // of the logits that exist at a time
  index_t hop_rows = 1024; // rows of a sub-block, of whatever moves
  rotation rotate = rotation::automatic;
  bool bias = false;
  bool frozen_inputs = false;  // no gradient of x is wanted
  bool frozen_weights = false; // none of the weights and the bias
  // What forward can be asked for beyond losses; each travels with a token that does.
  bool entropy = false;
  bool argmax = false;
  bool accuracy = false; // needs argmax
  // Where weights rotate, the gradient of x is summed in fp32 in the caller's array; with this in one of the
  // operator's, and rounded once into the caller's, at 4 x tokens x hidden bytes.
  bool input_gradient_accumulator = false;
  // 2: every other tile on a stream of the operator's, with memory and scratch of its own, so that the small
  // work of one runs beside the products of the other. The same bits.
  int tiles_in_flight = 1;
  // Above 0: a token's state is kept apart for each so many columns of the vocabulary, which are cut into
  // tiles from their first, and put together in the order of the vocabulary. Shards begin at multiples of it,
  // and so do sub-blocks of weights. See docs/ring.md for what this makes of the bits of a loss.
  index_t fixed_block = 0;
  // Gradients are made in forward, from one strip of logits (strip_rows, vocabulary): three products instead
  // of four, on one rank, for an upstream gradient of one value.
  bool one_pass = false;
  index_t strip_rows = 256; // its tiles have strip_rows tokens and tile.vocabulary columns
  cross_entropy_options options{};

  // Throws config_error with what cannot work.
  void check() const {
    const auto refuse = [](const std::string& what, const std::string& got) {
      throw config_error("plateau: linear_cross_entropy: " + what + ", got " + got);
    };
    const auto at_least = [&](const char* what, index_t n, index_t least) {
      if (n < least)
        refuse(std::string(what) + " must be at least " + std::to_string(least), std::to_string(n));
    };
    const auto extent = [&](const char* what, index_t n, index_t least) {
      at_least(what, n, least);
      if (n > detail::most_extent)
        refuse(std::string(what) + " must be at most " + std::to_string(detail::most_extent),
               std::to_string(n));
    };
    extent("tokens", tokens, 0);
    extent("hidden", hidden, 1);
    extent("vocabulary", vocabulary, 1);
    at_least("tile.tokens", tile.tokens, 1);
    at_least("tile.vocabulary", tile.vocabulary, 1);
    at_least("hop_rows", hop_rows, 1);
    const auto number = [&](const char* what, float value, bool good, const char* range) {
      if (!good || !is_finite(value)) refuse(std::string(what) + " must be " + range, std::to_string(value));
    };
    if (accuracy && !argmax) refuse("accuracy needs argmax too", "accuracy alone");
    if (tiles_in_flight != 1 && tiles_in_flight != 2)
      refuse("tiles_in_flight must be 1 or 2", std::to_string(tiles_in_flight));
    at_least("fixed_block (0: none)", fixed_block, 0);
    if (one_pass) {
      at_least("strip_rows", strip_rows, 1);
      if (tiles_in_flight != 1) refuse("one_pass works on one tile at a time", "tiles_in_flight 2");
      if (fixed_block != 0) refuse("one_pass keeps no fixed blocks", std::to_string(fixed_block));
      if (input_gradient_accumulator)
        refuse("one_pass sums the gradient of x in saved.dx", "input_gradient_accumulator");
    }
    number("smoothing", options.smoothing, options.smoothing >= 0 && options.smoothing <= 1, "in [0, 1]");
    number("z_loss", options.z_loss, options.z_loss >= 0, "at least 0");
    number("soft_cap", options.soft_cap, options.soft_cap >= 0, "at least 0 (0: none)");
    number("logit_scale", options.logit_scale, options.logit_scale != 0, "a finite number but 0");
  }

  digest digest_of(scalar_kind type, scalar_kind ids) const {
    digest d;
    d.add("linear_cross_entropy").add(type).add(ids).add(tokens).add(hidden).add(vocabulary);
    d.add(tile.tokens).add(tile.vocabulary).add(hop_rows).add(rotate).add(bias).add(frozen_inputs);
    d.add(frozen_weights).add(input_gradient_accumulator).add(tiles_in_flight).add(fixed_block);
    d.add(one_pass).add(strip_rows).add(options.ignore_index).add(options.smoothing);
    d.add(options.z_loss).add(options.soft_cap).add(options.logit_scale).add(options.reduction);
    return d.add(options.nan_when_empty).add(entropy).add(argmax).add(accuracy);
  }
  // What the digest is of, for the error that names both.
  std::string text(scalar_kind type, scalar_kind ids) const {
    constexpr const char* rotations[] = {"auto", "activations", "weights"};
    constexpr const char* reductions[] = {"none", "sum", "mean", "denominator"};
    const auto list = [](const char* name, auto value) {
      return ", " + std::string(name) + ' ' + std::to_string(value);
    };
    return std::string(scalar_name(type)) + ", targets " + std::string(scalar_name(ids)) +
           list("tokens", tokens) + list("hidden", hidden) + list("vocabulary", vocabulary) +
           list("tile", tile.tokens) + 'x' + std::to_string(tile.vocabulary) + list("hop_rows", hop_rows) +
           ", rotate " + rotations[static_cast<std::size_t>(rotate)] + list("bias", bias) +
           list("frozen inputs", frozen_inputs) + list("frozen weights", frozen_weights) +
           list("accumulator", input_gradient_accumulator) + list("tiles in flight", tiles_in_flight) +
           list("fixed block", fixed_block) + list("one pass", one_pass) + list("strip_rows", strip_rows) +
           list("ignore_index", options.ignore_index) + list("smoothing", options.smoothing) +
           list("z_loss", options.z_loss) + list("soft_cap", options.soft_cap) +
           list("logit_scale", options.logit_scale) + ", reduction " +
           reductions[static_cast<std::size_t>(options.reduction)] +
           list("NaN when empty", options.nan_when_empty) + list("entropy", entropy) +
           list("argmax", argmax) + list("accuracy", accuracy);
  }
};

} // namespace plateau::inline v0
