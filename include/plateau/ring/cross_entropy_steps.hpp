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
#include <plateau/ring/cross_entropy_kernels.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <span>

namespace plateau::inline v0 {

namespace detail {

// A block of tokens and one of the vocabulary, at one rank.
template <class T> struct ring_meeting {
  tile<const T> x, weight;
  view<const float> bias;
  index_t first_column = 0; // of the weights, in the whole vocabulary
};

// What forward and backward have in common.
template <class Backend, class T, class Id> struct cross_entropy_step {
  using stream = typename Backend::stream;

  Backend& backend;
  const cross_entropy_plan<Backend, T>& plan;
  const cross_entropy_inputs<T, Id>& in;
  const cross_entropy_saved& saved;
  std::span<const index_t> shard_first; // by rank; the vocabulary at the end
  int rank;
  loss_terms terms;
  view<float> logits;               // the memory of a tile
  view<token_gradient> tile_tokens; // where weights rotate
  scratch_view scratch;
  view<const float> class_sum; // (1)

  logit_map map() const { return {plan.shape.options.logit_scale, plan.shape.options.soft_cap}; }
  bool alone() const { return plan.ranks == 1; }
  index_t first_of_shard(int r) const { return shard_first[static_cast<std::size_t>(r)]; }

  // Fills the first part of a payload: rows of x, or of the weights and their bias.
  void load_rows(stream& s, const ring_step& own, const ring_block& to) {
    if (alone()) return; // used where they are
    const index_t h = plan.shape.hidden;
    backend.copy(s, plateau::in((plan.activations ? in.x : in.weight).row_block(own.first, own.rows)),
                 out(to.as_rows<T>(0, own.rows, h)));
    if (!plan.activations && plan.shape.bias)
      backend.copy(s, plateau::in(in.bias.sub(own.first, own.rows)), out(to.as<float>(1, own.rows)));
  }
  ring_meeting<T> meeting(const ring_step& at, const ring_block& payload) const {
    const tile<const T> moving = payload.as_rows<T>(0, at.rows, plan.shape.hidden);
    if (plan.activations)
      return {alone() ? in.x.row_block(at.first, at.rows) : moving, in.weight, in.bias, first_of_shard(rank)};
    const index_t first = first_of_shard(at.owner) + at.first;
    if (alone())
      return {in.x, in.weight.row_block(at.first, at.rows),
              plan.shape.bias ? in.bias.sub(at.first, at.rows) : in.bias, first};
    return {in.x, moving, plan.shape.bias ? payload.as<float>(1, at.rows) : view<float>{}, first};
  }

  // A tile of logits at a time: begin(token, tokens) once for each row of tiles, then
  // each(token, column, products) with products (tokens, columns) = x w^T.
  template <class Begin, class Each>
  void each_tile(stream& s, const ring_meeting<T>& m, Begin begin, Each each) {
    const auto [most_tokens, most_columns] = plan.shape.tile;
    for (index_t i = 0; i < m.x.rows && m.weight.rows != 0; i += most_tokens) {
      const index_t tokens = std::min(most_tokens, m.x.rows - i);
      begin(i, tokens);
      for (index_t j = 0; j < m.weight.rows; j += most_columns) {
        const index_t columns = std::min(most_columns, m.weight.rows - j);
        const tile<float> products = as_matrix(logits, tokens, columns);
        backend.gemm(s, transpose::no, transpose::yes, 1.0F, plateau::in(m.x.row_block(i, tokens)),
                     plateau::in(m.weight.row_block(j, columns)), 0.0F, out(products), scratch);
        each(i, j, products);
      }
    }
  }
  // launch(argument) with the products as they are read, or changed in place before.
  template <class Launch> void with_logits(tile<float> products, Launch launch) const {
    if (map().plain() && !plan.shape.bias)
      launch(plateau::in(products));
    else
      launch(inout(products));
  }
  view<const float> bias_of(const ring_meeting<T>& m, index_t j, index_t columns) const {
    return plan.shape.bias ? m.bias.sub(j, columns) : view<const float>{};
  }
  view<const float> classes_of(const ring_meeting<T>& m, index_t j, index_t columns) const {
    return in.class_weights.n == 0 ? in.class_weights : in.class_weights.sub(m.first_column + j, columns);
  }
  view<const float> token_weights_of(index_t first, index_t n) const {
    return in.token_weights.n == 0 ? in.token_weights : in.token_weights.sub(first, n);
  }
  void load_targets(stream& s, index_t first, index_t n, view<std::int64_t> to) {
    backend.launch(s, elements{n}, token_targets{terms}, plateau::in(in.targets.sub(first, n)),
                   plateau::in(token_weights_of(first, n)), out(to));
  }
};

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
    Backend& be = this->backend;
    const bool activations = this->plan.activations;
    const ring_meeting<T> m = this->meeting(at, payload);
    const view<token_state> states =
        activations ? carry.as<token_state>(0, at.rows) : this->saved.rows.sub(0, m.x.rows);
    const view<float> spreads = activations ? spreads_in(carry, at.rows) : want.entropies;
    const view<std::int64_t> ids = activations ? ids_in(carry, at.rows) : want.argmaxes;
    if (activations) begin(s, states, spreads, ids);
    const view<std::int64_t> of_tile{reinterpret_cast<std::int64_t*>(this->tile_tokens.p),
                                     this->tile_tokens.n};
    view<std::int64_t> targets;
    this->each_tile(
        s, m,
        [&](index_t i, index_t n) {
          targets = activations ? payload.as<std::int64_t>(1, at.rows).sub(i, n) : of_tile.sub(0, n);
          if (!activations) this->load_targets(s, i, n, targets);
        },
        [&](index_t i, index_t j, tile<float> products) {
          const fold_logits fold{this->map(), m.first_column + j, this->terms.smoothing != 0};
          const auto bias = in(this->bias_of(m, j, products.cols));
          const auto classes = in(this->classes_of(m, j, products.cols));
          const auto into = inout(states.sub(i, products.rows));
          this->with_logits(products, [&](auto tagged) {
            if (spreads.n == 0 && ids.n == 0)
              be.launch(s, rows{products.rows}, fold, tagged, bias, classes, in(targets), into);
            else
              be.launch(s, rows{products.rows}, fold_statistics{fold}, tagged, bias, classes, in(targets),
                        into, inout(part(spreads, i, products.rows)), inout(part(ids, i, products.rows)));
          });
        });
  }
  void merge(stream& s, index_t n, const ring_block& arrived, const ring_block& carry) {
    const auto from = in(arrived.as<token_state>(0, n));
    const auto into = inout(carry.as<token_state>(0, n));
    const view<float> spreads = spreads_in(carry, n);
    const view<std::int64_t> ids = ids_in(carry, n);
    if (spreads.n == 0 && ids.n == 0)
      this->backend.launch(s, elements{n}, merge_states{}, from, into);
    else
      this->backend.launch(s, elements{n}, merge_statistics{}, from, in(spreads_in(arrived, n)),
                           in(ids_in(arrived, n)), into, inout(spreads), inout(ids));
  }
  void finish(stream& s, const ring_step& own, const ring_block& carry) {
    this->backend.copy(s, in(carry.as<token_state>(0, own.rows)),
                       out(this->saved.rows.sub(own.first, own.rows)));
    if (want.entropies.n != 0)
      this->backend.copy(s, in(spreads_in(carry, own.rows)), out(want.entropies.sub(own.first, own.rows)));
    if (want.argmaxes.n != 0)
      this->backend.copy(s, in(ids_in(carry, own.rows)), out(want.argmaxes.sub(own.first, own.rows)));
  }
  // Sums over nothing.
  void begin(stream& s, view<token_state> states, view<float> spreads, view<std::int64_t> ids) {
    this->backend.launch(s, elements{states.n}, fill<token_state>{}, out(states));
    if (spreads.n != 0) this->backend.launch(s, elements{spreads.n}, fill<float>{}, out(spreads));
    if (ids.n != 0) this->backend.launch(s, elements{ids.n}, fill<std::int64_t>{no_id}, out(ids));
  }

 private:
  // What travels with the states, where it was asked for.
  view<float> spreads_in(const ring_block& carry, index_t n) const {
    return this->plan.shape.entropy ? carry.as<float>(1, n) : view<float>{};
  }
  view<std::int64_t> ids_in(const ring_block& carry, index_t n) const {
    return this->plan.shape.argmax ? carry.as<std::int64_t>(2, n) : view<std::int64_t>{};
  }
  template <class V> static view<V> part(view<V> v, index_t first, index_t n) {
    return v.n == 0 ? v : v.sub(first, n);
  }
};

template <class Backend, class T, class Id>
struct cross_entropy_backward : cross_entropy_step<Backend, T, Id> {
  using step = cross_entropy_step<Backend, T, Id>;
  using stream = typename Backend::stream;

  const cross_entropy_gradients<T>& to;
  loss_divisor by;
  view<const float> upstream;
  view<T> gradient_tile;       // the memory of a tile; the logits' own where T is float
  tile<float> stationary_dx{}; // where weights rotate: what the gradient of x is summed in
  bool dx_begun = false;

  void load(stream& s, const ring_step& own, const ring_block& payload) {
    this->load_rows(s, own, payload);
    if (this->plan.activations) load_gradients(s, own.first, payload.as<token_gradient>(1, own.rows));
  }
  void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block& carry) {
    Backend& be = this->backend;
    const cross_entropy_shape& shape = this->plan.shape;
    const bool activations = this->plan.activations, of_x = !shape.frozen_inputs,
               of_w = !shape.frozen_weights;
    const ring_meeting<T> m = this->meeting(at, payload);
    const tile<float> dx = activations ? carry.as_rows<float>(0, at.rows, shape.hidden) : stationary_dx;
    const tile<float> dw = activations ? to.dweight : carry.as_rows<float>(0, at.rows, shape.hidden);
    const view<float> dbias = activations ? to.dbias : carry.as<float>(1, at.rows);
    // What no tile writes: the other side has no rows.
    if (activations && of_x && m.weight.rows == 0) clear(s, as_row(dx));
    if (!activations && of_w && m.x.rows == 0) clear(s, as_row(dw));
    if (!activations && of_w && shape.bias) clear(s, dbias);
    view<const token_gradient> tokens;
    this->each_tile(
        s, m,
        [&](index_t i, index_t n) {
          if (activations) {
            tokens = payload.as<token_gradient>(1, at.rows).sub(i, n);
          } else {
            tokens = this->tile_tokens.sub(0, n);
            load_gradients(s, i, this->tile_tokens.sub(0, n));
          }
        },
        [&](index_t i, index_t j, tile<float> products) {
          const tile<T> d = as_matrix(gradient_tile, products.rows, products.cols);
          this->with_logits(products, [&](auto tagged) {
            be.launch(s, rows{products.rows}, logit_gradients{this->map(), m.first_column + j}, tagged,
                      in(this->bias_of(m, j, products.cols)), in(this->classes_of(m, j, products.cols)),
                      in(tokens), out(d));
          });
          if (of_x) {
            const bool first = j == 0 && (activations || !dx_begun);
            product(s, transpose::no, d, m.weight.row_block(j, products.cols), dx.row_block(i, products.rows),
                    first);
          }
          if (!of_w) return;
          const index_t row = j; // of the block of weights that is here
          product(s, transpose::yes, d, m.x.row_block(i, products.rows), dw.row_block(row, products.cols),
                  !activations && i == 0);
          if (shape.bias)
            column_sum(be, s, in(tile<const T>(d)), inout(dbias.sub(row, products.cols)), this->scratch);
        });
    dx_begun = true;
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

 private:
  void load_gradients(stream& s, index_t first, view<token_gradient> tokens) {
    this->backend.launch(s, elements{tokens.n}, token_gradients{this->terms, by, first}, in(this->in.targets),
                         in(this->in.token_weights), in(this->in.class_weights), in(this->class_sum),
                         in(this->saved.rows.sub(0, this->in.x.rows)), in(upstream),
                         in(this->saved.sums.sub(0, 2)), out(tokens));
  }
  // c = op(d) b, or added to what is there.
  void product(stream& s, transpose op, tile<T> d, tile<const T> b, tile<float> c, bool first) {
    if (first)
      this->backend.gemm(s, op, transpose::no, 1.0F, in(d), in(b), 0.0F, out(c), this->scratch);
    else
      this->backend.gemm(s, op, transpose::no, 1.0F, in(d), in(b), 1.0F, inout(c), this->scratch);
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
