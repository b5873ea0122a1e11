// SPDX-License-Identifier: Apache-2.0
//
// The limits of a linear cross-entropy, what of it moves around the ring, and what memory that takes: pure
// arithmetic on integers, the same on every rank.
#pragma once

#include <plateau/collectives.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/scalar.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <cmath>
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
    at_least("tokens", tokens, 0);
    at_least("hidden", hidden, 1);
    at_least("vocabulary", vocabulary, 1);
    at_least("tile.tokens", tile.tokens, 1);
    at_least("tile.vocabulary", tile.vocabulary, 1);
    at_least("hop_rows", hop_rows, 1);
    const auto number = [&](const char* what, float value, bool good, const char* range) {
      if (!good || !is_finite(value)) refuse(std::string(what) + " must be " + range, std::to_string(value));
    };
    if (accuracy && !argmax) refuse("accuracy needs argmax too", "accuracy alone");
    number("smoothing", options.smoothing, options.smoothing >= 0 && options.smoothing <= 1, "in [0, 1]");
    number("z_loss", options.z_loss, options.z_loss >= 0, "at least 0");
    number("soft_cap", options.soft_cap, options.soft_cap >= 0, "at least 0 (0: none)");
    number("logit_scale", options.logit_scale, options.logit_scale != 0, "a finite number but 0");
  }

  digest digest_of(scalar_kind type, scalar_kind ids) const {
    digest d;
    d.add("linear_cross_entropy").add(type).add(ids).add(tokens).add(hidden).add(vocabulary);
    d.add(tile.tokens).add(tile.vocabulary).add(hop_rows).add(rotate).add(bias).add(frozen_inputs);
    d.add(frozen_weights).add(input_gradient_accumulator).add(options.ignore_index).add(options.smoothing);
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
           list("accumulator", input_gradient_accumulator) + list("ignore_index", options.ignore_index) +
           list("smoothing", options.smoothing) + list("z_loss", options.z_loss) +
           list("soft_cap", options.soft_cap) + list("logit_scale", options.logit_scale) + ", reduction " +
           reductions[static_cast<std::size_t>(options.reduction)] +
           list("NaN when empty", options.nan_when_empty) + list("entropy", entropy) +
           list("argmax", argmax) + list("accuracy", accuracy);
  }
};

namespace detail {

// The decisions that follow from a shape.
template <class Backend, class T> struct cross_entropy_plan {
  cross_entropy_shape shape;
  int ranks = 1;
  bool activations = true; // what moves

  cross_entropy_plan(const cross_entropy_shape& s, int of_ranks) : shape(s), ranks(of_ranks) {
    s.check();
    const index_t row = s.hidden * static_cast<index_t>(sizeof(T));
    const index_t wide = s.hidden * static_cast<index_t>(sizeof(float));
    const rotation_bytes of_tokens{
        s.tokens, 2 * row + 8 + static_cast<index_t>(sizeof(token_state) + sizeof(token_gradient)) +
                      (s.frozen_inputs ? 0 : wide)};
    const rotation_bytes of_weights{(s.vocabulary - 1) / ranks + 1,
                                    2 * row + (s.bias ? 8 : 0) +
                                        (s.frozen_weights ? 0 : wide + (s.bias ? 4 : 0))};
    activations = cheaper_rotation(s.rotate, of_tokens, of_weights) == rotation::activations;
  }

  index_t hop_rows() const {
    return std::min(shape.hop_rows, std::max<index_t>(1, activations ? shape.tokens : shape.vocabulary));
  }
  // The largest tile that is ever there.
  index_t tile_tokens() const { return std::min(shape.tile.tokens, activations ? hop_rows() : shape.tokens); }
  index_t tile_columns() const {
    return std::min(shape.tile.vocabulary, activations ? shape.vocabulary : hop_rows());
  }

  ring_row forward_payload() const {
    return activations ? ring_row{row_bytes(), sizeof(std::int64_t)} : ring_row{row_bytes(), bias_bytes()};
  }
  ring_row forward_carry() const {
    if (!activations) return {};
    return {sizeof(token_state), shape.entropy ? sizeof(float) : 0, shape.argmax ? sizeof(std::int64_t) : 0};
  }
  ring_row backward_payload() const {
    return activations ? ring_row{row_bytes(), sizeof(token_gradient)} : ring_row{row_bytes(), bias_bytes()};
  }
  ring_row backward_carry() const {
    const std::size_t wide = static_cast<std::size_t>(shape.hidden) * sizeof(float);
    if (activations) return {shape.frozen_inputs ? 0 : wide, 0};
    return shape.frozen_weights ? ring_row{} : ring_row{wide, bias_bytes()};
  }
  ring_layout layout() const {
    const auto larger = [](const ring_row& a, const ring_row& b) {
      return ring_row{std::max(a[0], b[0]), std::max(a[1], b[1]), std::max(a[2], b[2])};
    };
    ring_layout l{hop_rows(),
                  {activations ? "moving activations" : "moving weights",
                   activations ? "moving targets" : "moving bias", ""},
                  {activations ? "moving states and gradients" : "moving weight gradients",
                   activations ? "moving entropies" : "moving bias gradients", "moving argmaxes"},
                  larger(forward_payload(), backward_payload()),
                  larger(forward_carry(), backward_carry())};
    if (ranks == 1) { // used where they are
      l.payload[0] = 0;
      if (!activations) l.payload[1] = 0;
    }
    return l;
  }

  bool needs_gradient_tile() const { return !std::is_same_v<T, float>; }
  bool needs_accumulator() const {
    return !activations && !shape.frozen_inputs && shape.input_gradient_accumulator;
  }
  std::size_t scratch_bytes() const {
    const index_t m = tile_tokens(), n = tile_columns(), h = shape.hidden;
    const auto product = [](transpose a, transpose b, index_t rows, index_t cols, index_t terms) {
      return Backend::template gemm_scratch_bytes<T, T, float>(a, b, rows, cols, terms);
    };
    std::size_t most = product(transpose::no, transpose::yes, m, n, h);
    if (!shape.frozen_inputs) most = std::max(most, product(transpose::no, transpose::no, m, h, n));
    if (!shape.frozen_weights) most = std::max(most, product(transpose::yes, transpose::no, n, h, m));
    if (shape.bias && !shape.frozen_weights) most = std::max(most, column_sum_scratch_bytes(m, n));
    return most;
  }
  static constexpr collective_options sum_options{2, false};

  plateau::working_set working_set() const {
    plateau::working_set set(tag::vocabulary);
    layout().add_to(set, ranks);
    set.template device<float>("tile of logits", tile_tokens() * tile_columns());
    if (needs_gradient_tile())
      set.template device<T>("tile of logit gradients", tile_tokens() * tile_columns());
    if (!activations) set.template device<token_gradient>("targets of a tile", tile_tokens());
    if (needs_accumulator())
      set.template device<float>("input gradient accumulator", shape.tokens * shape.hidden);
    set.template device<unsigned char>("scratch", static_cast<index_t>(scratch_bytes()));
    set.template device<token_sums>("sums over blocks of tokens", token_sum_blocks);
    set.template device<unsigned char>(
        "scratch of the sum over ranks",
        static_cast<index_t>(reduce_scratch_bytes<double>(ranks, sum_options)));
    set.template device<float>("sum of the class weights", 1);
    set.template device<bad_target>("first bad target", 1);
    set.template pinned<bad_target>("first bad target", 1);
    return set;
  }

 private:
  std::size_t row_bytes() const { return static_cast<std::size_t>(shape.hidden) * sizeof(T); }
  std::size_t bias_bytes() const { return shape.bias ? sizeof(float) : 0; }
};

} // namespace detail

} // namespace plateau::inline v0
