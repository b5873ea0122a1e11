// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy does where a block of tokens meets a block of the vocabulary: forward folds the
// logits, tile by tile, into the tokens' states; backward makes the tiles again and multiplies their
// gradients with both sides. Each is the work of a rotation (ring_reduce.hpp), for either side that moves.
#pragma once

#include <plateau/access.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/config.hpp>
#include <plateau/gemm.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/cross_entropy_arguments.hpp>
#include <plateau/ring/cross_entropy_blocks.hpp>
#include <plateau/ring/cross_entropy_kernels.hpp>
#include <plateau/ring/cross_entropy_plan.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/cross_entropy_step.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <array>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {

template <class Backend, class T, class Id>
struct cross_entropy_forward : cross_entropy_step<Backend, T, Id> {
  using step = cross_entropy_step<Backend, T, Id>;
  using stream = typename Backend::stream;

  const cross_entropy_outputs& want;

  void load(stream& s, const ring_step& own, const ring_block& to) {
    this->load_rows(s, own, to);
    if (this->plan.activations) this->load_targets(s, own.first, own.rows, to.as<std::int64_t>(1, own.rows));
  }
  void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block& carry) {
    const bool activations = this->plan.activations;
    const ring_meeting<T> m = this->meeting(at, payload);
    const block_sums to = sums_of(m, activations ? at.first : 0, carry);
    if (this->plan.states_travel()) begin(s, to);
    std::array<view<std::int64_t>, 2> targets;
    this->each_tile(
        s, m, true, false,
        [&](stream& on, index_t i, index_t n, std::size_t slot) {
          if (activations) {
            targets[slot] = payload.as<std::int64_t>(1, at.rows).sub(i, n);
          } else {
            targets[slot] = this->targets_of_tile(slot).sub(0, n);
            this->load_targets(on, i, n, targets[slot]);
          }
        },
        [](stream&, const logit_tile&) {},
        [&](stream& on, const logit_tile& t) { fold(on, m, t, t.in(this->logits), targets[t.slot], to); });
  }
  // The sums of the tokens of a meeting: of each block, one after the other, of so many tokens.
  struct block_sums {
    view<token_state> states;
    view<float> spreads;
    view<std::int64_t> ids;
    index_t tokens = 0;

    block_sums part(index_t block, index_t first, index_t n) const {
      const auto cut = [&](auto v) { return v.n == 0 ? v : v.sub(block * tokens + first, n); };
      return {cut(states), cut(spreads), cut(ids), n};
    }
  };
  // sums (+)= a tile, whose products become logits.
  void fold(stream& s, const ring_meeting<T>& m, const logit_tile& t, tile<float> products,
            view<const std::int64_t> targets, const block_sums& sums) {
    const index_t block = this->plan.shape.fixed_block, column = m.first_column + t.column;
    const block_sums to = sums.part(block == 0 ? 0 : column / block, t.token, t.tokens);
    const fold_logits fold{this->map(), column, this->terms.smoothing != 0};
    const auto bias = in(this->bias_of(m, t.column, t.columns));
    const auto classes = in(this->classes_of(m, t.column, t.columns));
    this->with_logits(products, [&](auto tagged) {
      if (to.spreads.n == 0 && to.ids.n == 0)
        this->backend.launch(s, rows{t.tokens}, fold, tagged, bias, classes, in(targets), inout(to.states));
      else
        this->backend.launch(s, rows{t.tokens}, fold_statistics{fold}, tagged, bias, classes, in(targets),
                             inout(to.states), inout(to.spreads), inout(to.ids));
    });
  }
  void merge(stream& s, index_t n, const ring_block& arrived, const ring_block& carry) {
    const block_sums from = travelling(arrived, n), to = travelling(carry, n);
    if (to.spreads.n == 0 && to.ids.n == 0)
      this->backend.launch(s, elements{to.states.n}, merge_states{}, in(from.states), inout(to.states));
    else
      this->backend.launch(s, elements{to.states.n}, merge_statistics{}, in(from.states), in(from.spreads),
                           in(from.ids), inout(to.states), inout(to.spreads), inout(to.ids));
  }
  void finish(stream& s, const ring_step& own, const ring_block& carry) {
    const block_sums from = travelling(carry, own.rows), to = wanted(own.first, own.rows);
    if (this->plan.blocks() > 1) return join(s, from, to);
    this->backend.copy(s, in(from.states), out(to.states));
    if (to.spreads.n != 0) this->backend.copy(s, in(from.spreads), out(to.spreads));
    if (to.ids.n != 0) this->backend.copy(s, in(from.ids), out(to.ids));
  }
  // Before the rotation, and after it, where nothing travels.
  void begin_at_home(stream& s) {
    if (this->plan.states_travel()) return;
    if (this->plan.states_stand_apart()) {
      const index_t n = this->in.x.rows, all = n * this->plan.blocks();
      const auto cut = [=](auto v) { return v.n == 0 ? v : v.sub(0, all); };
      apart = {cut(apart.states), cut(apart.spreads), cut(apart.ids), n};
    }
    begin(s, this->plan.states_stand_apart() ? apart : wanted(0, this->in.x.rows));
  }
  void finish_at_home(stream& s) {
    if (this->plan.states_stand_apart()) join(s, apart, wanted(0, this->in.x.rows));
  }
  // Where the sums are wanted in the end.
  block_sums wanted(index_t first, index_t n) const {
    const block_sums all{this->saved.rows, want.entropies, want.argmaxes, this->in.x.rows};
    return all.part(0, first, n);
  }
  block_sums apart{}; // where weights rotate and blocks stand apart

 private:
  // Sums over nothing.
  void begin(stream& s, const block_sums& to) {
    this->backend.launch(s, elements{to.states.n}, fill<token_state>{}, out(to.states));
    if (to.spreads.n != 0) this->backend.launch(s, elements{to.spreads.n}, fill<float>{}, out(to.spreads));
    if (to.ids.n != 0) this->backend.launch(s, elements{to.ids.n}, fill<std::int64_t>{no_id}, out(to.ids));
  }
  void join(stream& s, const block_sums& from, const block_sums& to) {
    const block_sums read{from.states, to.spreads.n == 0 ? view<float>{} : from.spreads,
                          to.ids.n == 0 ? view<std::int64_t>{} : from.ids, from.tokens};
    this->backend.launch(s, elements{to.tokens}, join_blocks{this->plan.blocks()}, in(read.states),
                         in(read.spreads), in(read.ids), out(to.states), out(to.spreads), out(to.ids));
  }
  block_sums sums_of(const ring_meeting<T>& m, index_t first, const ring_block& carry) const {
    if (this->plan.states_travel()) return travelling(carry, m.x.rows);
    return this->plan.states_stand_apart() ? apart : wanted(first, m.x.rows);
  }
  block_sums travelling(const ring_block& carry, index_t n) const {
    const index_t all = n * this->plan.blocks();
    return {carry.as<token_state>(0, all), this->plan.shape.entropy ? carry.as<float>(1, all) : view<float>{},
            this->plan.shape.argmax ? carry.as<std::int64_t>(2, all) : view<std::int64_t>{}, n};
  }
};

template <class Backend, class T, class Id>
struct cross_entropy_backward : cross_entropy_step<Backend, T, Id> {
  using step = cross_entropy_step<Backend, T, Id>;
  using stream = typename Backend::stream;

  const cross_entropy_gradients<T>& to;
  loss_divisor by;
  view<const float> upstream;
  std::array<view<T>, 2> gradient_tiles; // the memory of tiles; the logits' own where T is float
  tile<float> stationary_dx{};           // where weights rotate: what the gradient of x is summed in
  bool dx_begun = false;

  void load(stream& s, const ring_step& own, const ring_block& payload) {
    this->load_rows(s, own, payload);
    if (this->plan.activations) load_gradients(s, own.first, payload.as<token_gradient>(1, own.rows));
  }
  void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block& carry) {
    const cross_entropy_shape& shape = this->plan.shape;
    const bool activations = this->plan.activations, of_x = !shape.frozen_inputs,
               of_w = !shape.frozen_weights;
    const ring_meeting<T> m = this->meeting(at, payload);
    const bool home = this->plan.gradients_at_home();
    const sums_to sums = sums_of(at, carry);
    // What no tile writes: the other side has no rows.
    if (activations && of_x && m.weight.rows == 0) clear(s, as_row(sums.dx));
    if (!activations && of_w && !home && m.x.rows == 0) clear(s, as_row(sums.dweight));
    if (!activations && of_w && !home && shape.bias) clear(s, sums.dbias);
    std::array<view<const token_gradient>, 2> tokens;
    this->each_tile(
        s, m, of_x, of_w,
        [&](stream& on, index_t i, index_t n, std::size_t slot) {
          if (activations) {
            tokens[slot] = payload.as<token_gradient>(1, at.rows).sub(i, n);
          } else {
            tokens[slot] = this->tile_tokens[slot].sub(0, n);
            load_gradients(on, i, this->tile_tokens[slot].sub(0, n));
          }
        },
        [&](stream& on, const logit_tile& t) {
          turn_into_gradients(on, m, t, t.in(this->logits), false, tokens[t.slot], t.in(gradient_tiles));
        },
        [&](stream& on, const logit_tile& t) {
          multiply(on, m, t, t.in(gradient_tiles), sums, t.column == 0 && (activations || !dx_begun),
                   !activations && !home && t.token == 0);
        });
    dx_begun = true;
  }
  // What the gradients of a meeting are added to.
  struct sums_to {
    tile<float> dx, dweight;
    view<float> dbias;
  };
  // Products, or logits that nothing is done to any more, become the gradients of their logits, rounded to T.
  void turn_into_gradients(stream& s, const ring_meeting<T>& m, const logit_tile& t, tile<float> products,
                           bool are_logits, view<const token_gradient> tokens, tile<T> gradients) {
    const auto launch = [&](auto tagged) {
      this->backend.launch(s, rows{t.tokens}, logit_gradients{this->map(), m.first_column + t.column}, tagged,
                           in(this->bias_of(m, t.column, t.columns)),
                           in(this->classes_of(m, t.column, t.columns)), in(tokens), out(gradients));
    };
    if (are_logits)
      launch(in(products));
    else
      this->with_logits(products, launch);
  }
  // Sums += the products with both sides, or, where they are the first, become them.
  void multiply(stream& s, const ring_meeting<T>& m, const logit_tile& t, tile<T> d, const sums_to& sums,
                bool first_of_x, bool first_of_weight) {
    const cross_entropy_shape& shape = this->plan.shape;
    const scratch_view space = this->scratch[t.slot];
    if (!shape.frozen_inputs)
      product(s, transpose::no, d, m.weight.row_block(t.column, t.columns),
              sums.dx.row_block(t.token, t.tokens), first_of_x, space);
    if (shape.frozen_weights) return;
    product(s, transpose::yes, d, m.x.row_block(t.token, t.tokens),
            sums.dweight.row_block(t.column, t.columns), first_of_weight, space);
    if (shape.bias)
      column_sum(this->backend, s, in(tile<const T>(d)), inout(sums.dbias.sub(t.column, t.columns)), space);
  }
  void merge(stream& s, index_t n, const ring_block& arrived, const ring_block& carry) {
    add_into(s, arrived, n, carry.as_rows<float>(0, n, this->plan.shape.hidden), carry.as<float>(1, n));
  }
  void finish(stream& s, const ring_step& own, const ring_block& carry) {
    const index_t h = this->plan.shape.hidden;
    if (!this->plan.activations) {
      const bool bias = this->plan.shape.bias;
      return add_into(s, carry, own.rows, to.dweight.row_block(own.first, own.rows),
                      bias ? to.dbias.sub(own.first, own.rows) : view<float>{});
    }
    const tile<float> dx = carry.as_rows<float>(0, own.rows, h);
    if (to.wide_dx.rows != 0)
      this->backend.copy(s, in(dx), out(to.wide_dx.row_block(own.first, own.rows)));
    else
      round_into(s, dx, to.dx.row_block(own.first, own.rows));
  }
  void round_into(stream& s, tile<float> from, tile<T> rounded) {
    this->backend.launch(s, rows{from.rows}, round_rows{}, in(from), out(rounded));
  }

  void load_gradients(stream& s, index_t first, view<token_gradient> tokens) {
    const view<const double> sums = by.weight ? this->saved.sums.sub(0, 2) : view<double>{}; // else not read
    this->backend.launch(s, elements{tokens.n}, token_gradients{this->terms, by, first}, in(this->in.targets),
                         in(this->in.token_weights), in(this->in.class_weights), in(this->class_sum),
                         in(this->saved.rows.sub(0, this->in.x.rows)), in(upstream), in(sums), out(tokens));
  }

 private:
  sums_to sums_of(const ring_step& at, const ring_block& carry) const {
    const index_t h = this->plan.shape.hidden;
    const bool of_x = !this->plan.shape.frozen_inputs, of_w = !this->plan.shape.frozen_weights;
    if (this->plan.activations) {
      sums_to sums{{}, to.dweight, to.dbias};
      if (!of_x) return sums;
      sums.dx = this->plan.gradients_at_home() ? wide(to).row_block(at.first, at.rows)
                                               : carry.as_rows<float>(0, at.rows, h);
      return sums;
    }
    if (!of_w) return {stationary_dx, {}, {}};
    const bool bias = this->plan.shape.bias;
    if (this->plan.gradients_at_home())
      return {stationary_dx, to.dweight.row_block(at.first, at.rows),
              bias ? to.dbias.sub(at.first, at.rows) : view<float>{}};
    return {stationary_dx, carry.as_rows<float>(0, at.rows, h), carry.as<float>(1, at.rows)};
  }
  static tile<float> wide(const cross_entropy_gradients<T>& to) {
    if constexpr (std::is_same_v<T, float>)
      if (to.wide_dx.rows == 0) return to.dx;
    return to.wide_dx;
  }
  // c = op(d) b, or added to what is there.
  void product(stream& s, transpose op, tile<T> d, tile<const T> b, tile<float> c, bool first,
               scratch_view space) {
    if (first)
      this->backend.gemm(s, op, transpose::no, 1.0F, in(d), in(b), 0.0F, out(c), space);
    else
      this->backend.gemm(s, op, transpose::no, 1.0F, in(d), in(b), 1.0F, inout(c), space);
  }
  void clear(stream& s, view<float> v) { this->backend.launch(s, elements{v.n}, fill<float>{}, out(v)); }
  void add_into(stream& s, const ring_block& from, index_t n, tile<float> into, view<float> dbias) {
    this->backend.launch(s, rows{n}, add_rows{}, in(from.as_rows<float>(0, n, into.cols)), inout(into));
    if (!this->plan.activations && this->plan.shape.bias)
      this->backend.launch(s, elements{n}, add{}, in(from.as<float>(1, n)), inout(dbias));
  }
};

} // namespace detail

} // namespace plateau::inline v0
