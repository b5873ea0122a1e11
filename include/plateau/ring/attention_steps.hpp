// SPDX-License-Identifier: Apache-2.0
//
// What a ring attention does where its queries meet the keys of a rank: forward joins what they see to their
// states and sums; backward makes the scores again, and the gradients of keys and values go on with them.
// Each is the work of a rotation (ring_reduce.hpp).
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/attention_arguments.hpp>
#include <plateau/ring/attention_by_gemm.hpp>
#include <plateau/ring/attention_plan.hpp>
#include <plateau/ring/attention_rounds.hpp>
#include <plateau/ring/attention_row_kernels.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <span>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {

// What forward and backward have in common.
template <class Backend, class T, class Kernel> struct attention_step {
  using stream = typename Backend::stream;
  using plan_type = attention_plan<Backend, T, Kernel>;

  Backend& backend;
  Kernel& kernel;
  const plan_type& plan;
  const attention_memory<Backend, T, Kernel>& memory;
  const attention_rounds& rounds;
  const attention_inputs<T>& in;
  view<online_lse> all_states; // (rows of this rank, heads)
  tile<float> all_sums;        // (rows of this rank, heads x head_size)
  int rank;

  const attention_shape& shape() const { return plan.shape; }
  packed_documents documents() const { return packed_documents(in.split->tokens(), in.cu_seqlens); }

  // Keys and values of own rows, as they go around.
  void load(stream& s, const ring_step& own, const ring_block& to) {
    if (plan.alone()) return; // used where they are
    const index_t cols = shape().key_columns();
    for (const attention_piece& p : rounds.pieces(rank, own.round)) {
      const index_t n = p.positions.rows;
      const auto part = [&](std::size_t i) {
        return to.template as_rows<T>(i, own.rows, cols).row_block(p.block_row, n);
      };
      backend.copy(s, plateau::in(in.k.row_block(p.local_row, n)), out(part(0)));
      backend.copy(s, plateau::in(in.v.row_block(p.local_row, n)), out(part(1)));
      if (shape().hidden_keys)
        backend.copy(s, plateau::in(in.hidden_keys.sub(p.local_row, n)),
                     out(to.template as<unsigned char>(2, own.rows).sub(p.block_row, n)));
    }
  }
  attention_keys<T> keys_of(const ring_step& at, const ring_block& payload) const {
    if (plan.alone()) return {in.k, in.v, in.hidden_keys, true};
    const index_t cols = shape().key_columns();
    return {payload.template as_rows<T>(0, at.rows, cols), payload.template as_rows<T>(1, at.rows, cols),
            shape().hidden_keys ? payload.template as<unsigned char>(2, at.rows) : view<unsigned char>{}};
  }

  // f(queries) for all queries of this rank.
  template <class F> void each_tile(F f) { each_queries(shape(), *in.split, documents(), rank, f); }
  view<online_lse> states_at(const attention_queries& q) const {
    return all_states.sub(q.local_row * shape().heads, q.positions.rows * shape().heads);
  }
  // A block for a kernel of the user's: keys from `row` of the piece on.
  attention_block<T> block(const attention_queries& q, const attention_keys<T>& keys,
                           const attention_piece& p, index_t row, const attention_tile_mask& mask) const {
    const index_t first = keys.row(p) + row, n = mask.keys.rows;
    const attention_shape& z = shape();
    return {in.q.row_block(q.local_row, q.positions.rows),
            keys.k.row_block(first, n),
            keys.v.row_block(first, n),
            mask,
            keys.hidden.n == 0 ? keys.hidden : keys.hidden.sub(first, n),
            z.heads,
            z.kv_heads,
            z.head_size,
            z.scale()};
  }
  // f(piece, row of it, mask): all keys of a piece that are seen at once, which are at most hop_rows.
  template <class F> void each_block(const attention_queries& q, const ring_step& at, F f) {
    for (const attention_piece& p : rounds.pieces(at.owner, at.round))
      meet(q, p, p.positions.rows, [&](index_t row, const attention_tile_mask& mask) { f(p, row, mask); });
  }
  void clear(stream& s, tile<float> t) { backend.launch(s, rows{t.rows}, attention_clear{}, out(t)); }
};

template <class Backend, class T, class Kernel>
struct attention_forward : attention_step<Backend, T, Kernel> {
  using stream = typename Backend::stream;
  using plan_type = attention_plan<Backend, T, Kernel>;

  void begin(stream& s) {
    this->backend.launch(s, elements{this->all_states.n}, fill<online_lse>{}, out(this->all_states));
    this->clear(s, this->all_sums);
  }
  void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block&) {
    const attention_keys<T> keys = this->keys_of(at, payload);
    const auto pieces = this->rounds.pieces(at.owner, at.round);
    this->each_tile([&](const attention_queries& q) {
      const index_t n = q.positions.rows;
      const tile<float> sums = this->all_sums.row_block(q.local_row, n);
      const view<online_lse> states = this->states_at(q);
      if constexpr (plan_type::by_gemm) {
        attention_products<Backend, T>{this->backend, this->plan, this->memory}.forward(
            s, q,
            {this->in.q.row_block(q.local_row, n), {}, as_matrix(states, n, this->shape().heads), {}, sums},
            pieces, keys);
      } else {
        const attention_shape& z = this->shape();
        const tile<T> result = as_matrix(this->memory.results, n, z.query_columns());
        const tile<float> lses = as_matrix(this->memory.logarithms, z.heads, n);
        this->each_block(q, at, [&](const attention_piece& p, index_t row, const attention_tile_mask& mask) {
          this->kernel.forward(this->backend, s, this->block(q, keys, p, row, mask), result, lses,
                               this->memory.scratch);
          this->backend.launch(s, rows{n * z.heads}, attention_join_lse{z.heads}, in(tile<const T>(result)),
                               in(tile<const float>(lses)), inout(states), inout(sums));
        });
      }
    });
  }
  void finish_all(stream& s, tile<T> result) {
    const attention_mean mean{this->shape().heads};
    const rows all{this->all_states.n};
    if constexpr (plan_type::wide)
      this->backend.launch(s, all, mean, in(this->all_states), inout(result));
    else
      this->backend.launch(s, all, mean, in(this->all_states), in(this->all_sums), out(result));
  }
  // Nothing comes home.
  void merge(stream&, index_t, const ring_block&, const ring_block&) {}
  void finish(stream&, const ring_step&, const ring_block&) {}
};

template <class Backend, class T, class Kernel>
struct attention_backward : attention_step<Backend, T, Kernel> {
  using stream = typename Backend::stream;
  using plan_type = attention_plan<Backend, T, Kernel>;

  tile<const T> result, upstream;
  const attention_gradients<T>& to;
  view<float> dots;

  void begin(stream& s) {
    this->clear(s, this->all_sums);
    if constexpr (plan_type::by_gemm)
      this->backend.launch(s, rows{dots.n}, attention_dots{this->shape().heads}, in(result), in(upstream),
                           out(dots));
    if constexpr (plan_type::wide)
      if (this->plan.key_gradients_at_home()) this->clear(s, to.dk), this->clear(s, to.dv);
  }
  void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block& carry) {
    attention_keys<T> keys = this->keys_of(at, payload);
    const bool home = this->plan.key_gradients_at_home();
    if constexpr (plan_type::wide)
      if (home) keys.dk = to.dk, keys.dv = to.dv, keys.sums_at_home = true;
    if (!home) {
      keys.dk = carried(carry, 0, at.rows), keys.dv = carried(carry, 1, at.rows);
      this->clear(s, keys.dk);
      this->clear(s, keys.dv);
    }
    const auto pieces = this->rounds.pieces(at.owner, at.round);
    this->each_tile([&](const attention_queries& q) {
      const index_t n = q.positions.rows;
      const auto part = [&](auto t) { return t.row_block(q.local_row, n); };
      const tile<float> sums = part(this->all_sums);
      const view<online_lse> states = this->states_at(q);
      if constexpr (plan_type::by_gemm) {
        const index_t heads = this->shape().heads;
        const view<const float> dot = dots.sub(q.local_row * heads, states.n);
        attention_products<Backend, T>{this->backend, this->plan, this->memory}.backward(
            s, q,
            {part(this->in.q), part(upstream), as_matrix(states, n, heads), as_matrix(dot, n, heads), sums},
            pieces, keys);
      } else {
        const tile<float> lses = as_matrix(this->memory.logarithms, this->shape().heads, n);
        bool first = true;
        this->each_block(q, at, [&](const attention_piece& p, index_t row, const attention_tile_mask& mask) {
          if (first)
            this->backend.launch(s, elements{states.n}, attention_logarithms{}, in(states), out(lses));
          first = false;
          const index_t from = keys.sums_row(p) + row, keys_seen = mask.keys.rows;
          this->kernel.backward(this->backend, s, this->block(q, keys, p, row, mask), part(result),
                                tile<const float>(lses), part(upstream), sums,
                                keys.dk.row_block(from, keys_seen), keys.dv.row_block(from, keys_seen),
                                this->memory.scratch);
        });
      }
    });
  }
  void merge(stream& s, index_t n, const ring_block& arrived, const ring_block& carry) {
    for (const std::size_t i : {0u, 1u})
      this->backend.launch(s, elements{n * this->shape().key_columns()}, add{}, in(flat(arrived, i, n)),
                           inout(flat(carry, i, n)));
  }
  void finish(stream& s, const ring_step& own, const ring_block& carry) {
    for (const attention_piece& p : this->rounds.pieces(this->rank, own.round)) {
      const index_t n = p.positions.rows;
      const auto home = [&](std::size_t i, tile<T> rounded) {
        this->backend.launch(s, rows{n}, round_rows{},
                             in(carried(carry, i, own.rows).row_block(p.block_row, n)),
                             out(rounded.row_block(p.local_row, n)));
      };
      home(0, to.dk);
      home(1, to.dv);
    }
  }
  void finish_all(stream& s) {
    if constexpr (!plan_type::wide)
      this->backend.launch(s, rows{this->all_sums.rows}, round_rows{}, in(this->all_sums), out(to.dq));
  }

 private:
  tile<float> carried(const ring_block& carry, std::size_t part, index_t n) const {
    return carry.template as_rows<float>(part, n, this->shape().key_columns());
  }
  view<float> flat(const ring_block& block, std::size_t part, index_t n) const {
    return block.template as<float>(part, n * this->shape().key_columns());
  }
};

} // namespace detail

} // namespace plateau::inline v0
