// SPDX-License-Identifier: Apache-2.0
//
// The decisions that follow from the limits of a linear cross-entropy: what of it moves around the ring, and
// what memory that takes. Pure arithmetic on integers, the same on every rank.
#pragma once

#include <plateau/collectives.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

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
        s.tokens, 2 * row + 8 + blocks() * static_cast<index_t>(sizeof(token_state)) +
                      static_cast<index_t>(sizeof(token_gradient)) + (s.frozen_inputs ? 0 : wide)};
    const rotation_bytes of_weights{(s.vocabulary - 1) / ranks + 1,
                                    2 * row + (s.bias ? 8 : 0) +
                                        (s.frozen_weights ? 0 : wide + (s.bias ? 4 : 0))};
    activations = s.one_pass || cheaper_rotation(s.rotate, of_tokens, of_weights) == rotation::activations;
    if (s.one_pass && ranks != 1)
      throw config_error("plateau: linear_cross_entropy: one_pass makes gradients in forward, where one rank "
                         "has the whole vocabulary, got " +
                         std::to_string(ranks) + " ranks: use the recompute mode, one_pass = false");
    if (!activations && s.fixed_block != 0 && s.hop_rows < s.vocabulary && s.hop_rows % s.fixed_block != 0)
      throw config_error("plateau: linear_cross_entropy: where weights rotate in fixed blocks, hop_rows must "
                         "be a multiple of fixed_block " +
                         std::to_string(s.fixed_block) + ", got " + std::to_string(s.hop_rows));
    check_products();
  }

  bool alone() const { return ranks == 1; }
  // States that a token has while blocks of the vocabulary are kept apart.
  index_t blocks() const {
    return shape.fixed_block == 0 ? 1 : (shape.vocabulary - 1) / shape.fixed_block + 1;
  }
  // Whether forward folds into states that travel, or stand apart; else into the caller's.
  bool states_travel() const { return !shape.one_pass && activations && (!alone() || blocks() > 1); }
  bool states_stand_apart() const { return !activations && blocks() > 1; }
  // Whether the gradient of the moving side is summed where the caller wants it.
  bool gradients_at_home() const { return alone() && (!activations || std::is_same_v<T, float>); }
  std::size_t tile_slots() const { return static_cast<std::size_t>(shape.tiles_in_flight); }

  index_t hop_rows() const {
    return std::min(shape.hop_rows, std::max<index_t>(1, activations ? shape.tokens : shape.vocabulary));
  }
  // The largest tile that is ever there.
  index_t tile_tokens() const {
    if (shape.one_pass) return std::min(shape.strip_rows, shape.tokens);
    return std::min(shape.tile.tokens, activations ? hop_rows() : shape.tokens);
  }
  index_t tile_columns() const {
    const index_t most = std::min(shape.tile.vocabulary, activations ? shape.vocabulary : hop_rows());
    return shape.fixed_block == 0 ? most : std::min(most, shape.fixed_block);
  }

  ring_row forward_payload() const {
    return activations ? ring_row{row_bytes(), sizeof(std::int64_t)} : ring_row{row_bytes(), bias_bytes()};
  }
  ring_row forward_carry() const { return states_travel() ? state_row() : ring_row{}; }
  ring_row backward_payload() const {
    return activations ? ring_row{row_bytes(), sizeof(token_gradient)} : ring_row{row_bytes(), bias_bytes()};
  }
  ring_row backward_carry() const {
    if (gradients_at_home()) return {};
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
    if (alone()) { // used where they are
      l.payload[0] = 0;
      if (!activations) l.payload[1] = 0;
    }
    return l;
  }

  bool needs_gradient_tile() const { return !std::is_same_v<T, float>; }
  bool targets_of_a_tile() const { return shape.one_pass || !activations; }
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
    const auto each = [&](auto add) {
      for (std::size_t slot = 0; slot < tile_slots(); ++slot) add();
    };
    if (!shape.one_pass) layout().add_to(set, ranks);
    if (shape.one_pass) {
      check_strip();
      set.template device<float>("strip of logits", tile_tokens() * shape.vocabulary);
      set.template device<float>("unit upstream gradient", 1);
    } else {
      each([&] { set.template device<float>("tile of logits", tile_tokens() * tile_columns()); });
    }
    if (needs_gradient_tile())
      each([&] { set.template device<T>("tile of logit gradients", tile_tokens() * tile_columns()); });
    if (targets_of_a_tile())
      each([&] { set.template device<token_gradient>("targets of a tile", tile_tokens()); });
    each([&] { set.template device<unsigned char>("scratch", static_cast<index_t>(scratch_bytes())); });
    if (states_stand_apart()) {
      const index_t n = shape.tokens * blocks();
      set.template device<token_state>("states of fixed blocks", n);
      if (shape.entropy) set.template device<float>("entropies of fixed blocks", n);
      if (shape.argmax) set.template device<std::int64_t>("argmaxes of fixed blocks", n);
    }
    if (needs_accumulator())
      set.template device<float>("input gradient accumulator", shape.tokens * shape.hidden);
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
  // Each size can be had; what they make together may overflow.
  void check_products() const {
    const auto check = [](const char* what, index_t rows, index_t cols) {
      if (detail::too_many_elements(rows, cols))
        throw config_error("plateau: linear_cross_entropy: " + std::string(what) + " of " +
                           std::to_string(rows) + " x " + std::to_string(cols) +
                           " elements overflows: make one of them smaller");
    };
    check("a tile", tile_tokens(), tile_columns());
    check("the rows of x in a tile", tile_tokens(), shape.hidden);
    check("the rows of the weights in a tile", tile_columns(), shape.hidden);
    if (states_stand_apart()) check("states of fixed blocks", shape.tokens, blocks());
    if (needs_accumulator()) check("input_gradient_accumulator", shape.tokens, shape.hidden);
  }
  std::size_t row_bytes() const { return static_cast<std::size_t>(shape.hidden) * sizeof(T); }
  ring_row state_row() const {
    const auto n = static_cast<std::size_t>(blocks());
    return {n * sizeof(token_state), shape.entropy ? n * sizeof(float) : 0,
            shape.argmax ? n * sizeof(std::int64_t) : 0};
  }
  void check_strip() const {
    if (tile_tokens() > static_cast<index_t>(plateau::detail::most_bytes / sizeof(float)) / shape.vocabulary)
      throw config_error("plateau: linear_cross_entropy: a strip of " + std::to_string(tile_tokens()) +
                         " rows of " + std::to_string(shape.vocabulary) +
                         " logits overflows: make strip_rows smaller");
  }
  std::size_t bias_bytes() const { return shape.bias ? sizeof(float) : 0; }
};

} // namespace detail

} // namespace plateau::inline v0
