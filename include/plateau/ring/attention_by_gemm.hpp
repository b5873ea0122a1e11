// SPDX-License-Identifier: Apache-2.0
//
// An attention's queries against the keys of a sub-block by products of the backend, a tile of scores at a
// time. The query heads of a group are folded into rows, so that each product is one strided batch over key
// heads. Where a key head has one query head, they are read where they lie.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/gemm.hpp>
#include <plateau/ring/attention_kernels.hpp>
#include <plateau/ring/attention_plan.hpp>
#include <plateau/ring/attention_rounds.hpp>
#include <plateau/ring/attention_row_kernels.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <span>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {

// The keys that are at a rank, and the sums of their gradients: in the rows of the sub-block, or where the
// caller has them.
template <class T> struct attention_keys {
  tile<const T> k, v;
  view<const unsigned char> hidden;
  bool at_home = false, sums_at_home = false;
  tile<float> dk{}, dv{};

  index_t row(const attention_piece& p) const { return at_home ? p.local_row : p.block_row; }
  index_t sums_row(const attention_piece& p) const { return sums_at_home ? p.local_row : p.block_row; }
};

template <class Backend, class T> struct attention_products {
  using stream = typename Backend::stream;
  using plan_type = attention_plan<Backend, T, attention_by_gemm>;

  Backend& backend;
  const plan_type& plan;
  const attention_memory<Backend, T, attention_by_gemm>& memory;

  // Queries of a tile, all heads: their rows of q or dout; their states; the sums that they are added to.
  struct tile_rows {
    tile<const T> q, upstream; // (positions, heads x head_size)
    tile<online_lse> states;   // (positions, heads)
    tile<const float> dots;    // as states
    tile<float> sums;          // as q
  };

  // states and sums += what these queries see of the pieces.
  void forward(stream& s, const attention_queries& queries, const tile_rows& at,
               std::span<const attention_piece> pieces, const attention_keys<T>& keys) {
    if (!any_seen(queries, pieces)) return;
    each_heads([&](index_t h, index_t n) {
      const batch b{*this, queries, h, n};
      const tile_batch<const T> q = b.packed(s, at.q, memory.queries);
      const tile_batch<float> sums = b.tiles(memory.tile_sums, plan.shape.head_size);
      const view<online_lse> states = memory.states.sub(0, b.all());
      bool first = true;
      each_tile(queries, pieces, [&](const attention_piece& p, index_t row, const attention_tile_mask& mask) {
        const index_t count = mask.keys.rows, from = keys.row(p) + row;
        const tile_batch<float> scores = b.tiles(memory.scores, count);
        backend.gemm(s, transpose::no, transpose::yes, plan.shape.scale(), in(q),
                     in(b.keys(keys.k, from, count)), 0.0F, out(scores), memory.scratch);
        const attention_fold fold{mask, b.where, first};
        tile_batch<T> shares;
        const auto hidden = in(hidden_of(keys, from, count));
        // What begins is written, and not read.
        const auto launch = [&](auto tagged_states, auto tagged_sums) {
          if constexpr (plan_type::wide) {
            shares = scores;
            backend.launch(s, rows{b.all()}, fold, inout(scores), hidden, tagged_states, tagged_sums);
          } else {
            shares = b.tiles(memory.shares, count);
            backend.launch(s, rows{b.all()}, fold, in(scores), hidden, out(shares), tagged_states,
                           tagged_sums);
          }
        };
        if (first)
          launch(out(states), inout(tile_batch<float>{}));
        else
          launch(inout(states), inout(sums));
        multiply(s, transpose::no, 1.0F, shares, b.keys(keys.v, from, count), sums, first);
        first = false;
      });
      backend.launch(s, rows{b.all()}, attention_join{b.where}, in(states), in(sums),
                     inout(b.own(at.states, 1)), inout(b.own(at.sums, plan.shape.head_size)));
    });
  }

  // sums += the gradients of these queries, and those of the keys += theirs.
  void backward(stream& s, const attention_queries& queries, const tile_rows& at,
                std::span<const attention_piece> pieces, const attention_keys<T>& keys) {
    if (!any_seen(queries, pieces)) return;
    each_heads([&](index_t h, index_t n) {
      const batch b{*this, queries, h, n};
      const tile_batch<const T> q = b.packed(s, at.q, memory.queries),
                                upstream = b.packed(s, at.upstream, memory.upstream);
      const tile_batch<float> sums = b.tiles(memory.tile_sums, plan.shape.head_size);
      bool first = true;
      each_tile(queries, pieces, [&](const attention_piece& p, index_t row, const attention_tile_mask& mask) {
        const index_t count = mask.keys.rows, from = keys.row(p) + row;
        const index_t to = keys.sums_row(p) + row;
        const float scale = plan.shape.scale();
        const tile_batch<const T> k = b.keys(keys.k, from, count), v = b.keys(keys.v, from, count);
        const tile_batch<float> scores = b.tiles(memory.scores, count),
                                dshares = b.tiles(memory.dshares, count);
        backend.gemm(s, transpose::no, transpose::yes, scale, in(q), in(k), 0.0F, out(scores),
                     memory.scratch);
        backend.gemm(s, transpose::no, transpose::yes, 1.0F, in(upstream), in(v), 0.0F, out(dshares),
                     memory.scratch);
        const attention_gradient gradient{mask, b.where};
        const auto hidden = in(hidden_of(keys, from, count));
        const auto states = in(b.own(at.states, 1));
        const auto dots = in(b.own(at.dots, 1));
        tile_batch<T> shares, dscores;
        if constexpr (plan_type::wide) {
          shares = scores, dscores = dshares;
          backend.launch(s, rows{b.all()}, gradient, inout(scores), inout(dshares), hidden, states, dots);
        } else {
          shares = b.tiles(memory.shares, count), dscores = b.tiles(memory.dscores, count);
          backend.launch(s, rows{b.all()}, gradient, in(scores), in(dshares), hidden, states, dots,
                         out(shares), out(dscores));
        }
        multiply(s, transpose::yes, 1.0F, shares, upstream, b.sums_of_keys(keys.dv, to, count), false);
        multiply(s, transpose::no, scale, dscores, k, sums, first);
        multiply(s, transpose::yes, scale, dscores, q, b.sums_of_keys(keys.dk, to, count), false);
        first = false;
      });
      backend.launch(s, rows{b.all()}, attention_unpack{b.where}, in(sums),
                     inout(b.own(at.sums, plan.shape.head_size)));
    });
  }

 private:
  // Some key heads of a tile: their rows in the memory of a tile, and where they lie in rows of all heads.
  struct batch {
    attention_products& of;
    const attention_queries& queries;
    index_t first_head, count;
    attention_rows where{of.plan.shape.group()};

    index_t rows_of_each() const { return queries.positions.rows * where.group; }
    index_t all() const { return rows_of_each() * count; }
    template <class E> tile_batch<E> tiles(view<E> all_tiles, index_t cols) const {
      const index_t n = rows_of_each();
      return {all_tiles.sub(0, n * count * cols).p, count, n * cols, n, cols, cols};
    }
    // The columns of its query heads, `each` a head.
    template <class E> tile<E> own(tile<E> all_heads, index_t each) const {
      const index_t cols = where.group * each;
      return all_heads.column_block(first_head * cols, count * cols);
    }
    tile_batch<const T> packed(stream& s, tile<const T> from, view<T> room) const {
      const index_t d = of.plan.shape.head_size;
      if (!of.plan.packs()) return heads_of(from);
      const tile_batch<T> to = tiles(room, d);
      of.backend.launch(s, plateau::rows{all()}, attention_pack{where}, in(own(from, d)), out(to));
      return to;
    }
    template <class E> tile_batch<E> heads_of(tile<E> from) const {
      const index_t d = of.plan.shape.head_size;
      return {from.p + first_head * d, count, d, from.rows, d, from.ld};
    }
    tile_batch<const T> keys(tile<const T> all, index_t first, index_t n) const {
      return heads_of(all.row_block(first, n));
    }
    tile_batch<float> sums_of_keys(tile<float> all, index_t first, index_t n) const {
      return heads_of(all.row_block(first, n));
    }
  };

  static bool any_seen(const attention_queries& queries, std::span<const attention_piece> pieces) {
    return std::any_of(pieces.begin(), pieces.end(), [&](const attention_piece& p) {
      return p.positions.first < queries.seen.end() && queries.seen.first < p.positions.end();
    });
  }
  template <class F> void each_heads(F f) {
    const index_t all = plan.shape.kv_heads, most = plan.kv_heads();
    for (index_t h = 0; h < all; h += most) f(h, std::min(most, all - h));
  }
  template <class F>
  void each_tile(const attention_queries& queries, std::span<const attention_piece> pieces, F f) {
    for (const attention_piece& piece : pieces)
      meet(queries, piece, plan.shape.tile.keys,
           [&](index_t row, const attention_tile_mask& mask) { f(piece, row, mask); });
  }
  static view<const unsigned char> hidden_of(const attention_keys<T>& keys, index_t first, index_t n) {
    return keys.hidden.n == 0 ? keys.hidden : keys.hidden.sub(first, n);
  }
  void multiply(stream& s, transpose op, float alpha, tile_batch<const T> a, tile_batch<const T> b,
                tile_batch<float> c, bool first) {
    if (first)
      backend.gemm(s, op, transpose::no, alpha, in(a), in(b), 0.0F, out(c), memory.scratch);
    else
      backend.gemm(s, op, transpose::no, alpha, in(a), in(b), 1.0F, inout(c), memory.scratch);
  }
};

} // namespace detail

} // namespace plateau::inline v0
