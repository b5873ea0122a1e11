// SPDX-License-Identifier: Apache-2.0
//
// What forward and backward of a linear cross-entropy have in common: the blocks that meet at a rank, and how
// they are cut into tiles of logits, one or two of which are in flight.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/gemm.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/cross_entropy_arguments.hpp>
#include <plateau/ring/cross_entropy_kernels.hpp>
#include <plateau/ring/cross_entropy_plan.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace plateau::inline v0 {

namespace detail {

// A block of tokens and one of the vocabulary, at one rank.
template <class T> struct ring_meeting {
  tile<const T> x, weight;
  view<const float> bias;
  index_t first_column = 0; // of the weights, in the whole vocabulary
};

// A tile of logits of such a meeting: of which tokens and columns of it, in which memory.
struct logit_tile {
  index_t token = 0, column = 0, tokens = 0, columns = 0;
  std::size_t slot = 0;

  template <class E> tile<E> in(const std::array<view<E>, 2>& memory) const {
    return as_matrix(memory[slot], tokens, columns);
  }
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
  stream* second;                                  // for every other tile; nullptr: one is in flight
  std::array<view<float>, 2> logits;               // of a tile in flight, as what follows
  std::array<view<token_gradient>, 2> tile_tokens; // where weights rotate
  std::array<scratch_view, 2> scratch;
  view<const float> class_sum; // (1)

  logit_map map() const { return {plan.shape.options.logit_scale, plan.shape.options.soft_cap}; }
  bool alone() const { return plan.alone(); }
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

  // Columns of the tile that begins at column j: no further than the fixed block.
  index_t columns_at(const ring_meeting<T>& m, index_t j) const {
    const index_t most = std::min(plan.shape.tile.vocabulary, m.weight.rows - j),
                  block = plan.shape.fixed_block;
    return block == 0 ? most : std::min(most, block - (m.first_column + j) % block);
  }
  void make_logits(stream& s, const ring_meeting<T>& m, const logit_tile& t, tile<float> products) {
    backend.gemm(s, transpose::no, transpose::yes, 1.0F, plateau::in(m.x.row_block(t.token, t.tokens)),
                 plateau::in(m.weight.row_block(t.column, t.columns)), 0.0F, out(products), scratch[t.slot]);
  }
  // Tile after tile: the products x w^T, then pass(stream, tile), then sum(stream, tile). Before the first
  // tile of some tokens in a slot, begin(stream, first token, tokens, slot).
  //
  // Two tiles in flight have a stream, a slot of memory and scratch each, so that the small work of one runs
  // beside the products of the other. Only sums meet: one that adds to the tokens or to the columns of the
  // tile before waits for it, which leaves the order of all sums that of one tile in flight. Tokens have a
  // sum where `of_tokens`, columns where `of_columns`.
  template <class Begin, class Pass, class Sum>
  void each_tile(stream& s, const ring_meeting<T>& m, bool of_tokens, bool of_columns, Begin begin, Pass pass,
                 Sum sum) {
    using event = typename Backend::event;
    if (m.x.rows == 0 || m.weight.rows == 0) return;
    const index_t most = plan.shape.tile.tokens;
    const bool one_column = columns_at(m, 0) == m.weight.rows;
    const event begun = second != nullptr ? backend.record(s) : event();
    event summed; // of the tile before
    std::array<index_t, 2> loaded{-1, -1};
    std::size_t slot = 0;
    bool used_second = false, apart = false; // of s, from what the second stream does
    for (index_t i = 0; i < m.x.rows; i += most) {
      const index_t tokens = std::min(most, m.x.rows - i);
      for (index_t j = 0, columns = 0; j < m.weight.rows; j += columns) {
        columns = columns_at(m, j);
        const logit_tile t{i, j, tokens, columns, slot};
        stream& on = slot == 0 ? s : *second;
        if (slot == 1 && !used_second) backend.wait(*second, begun);
        used_second = used_second || slot == 1;
        make_logits(on, m, t, t.in(logits));
        if (loaded[slot] != i) begin(on, i, tokens, slot);
        loaded[slot] = i;
        pass(on, t);
        // Without sums of tokens, columns come again after a whole row of tiles: all wait.
        const bool adds = of_tokens ? j != 0 || (of_columns && one_column) : of_columns;
        const bool waits = second != nullptr && adds && (i != 0 || j != 0);
        if (waits) backend.wait(on, summed);
        sum(on, t);
        if (second == nullptr) continue;
        summed = backend.record(on);
        apart = slot == 1 || (apart && !waits);
        slot = 1 - slot;
      }
    }
    if (apart) backend.wait(s, backend.record(*second));
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
  // The same memory as gradients of tokens have: one of both is there at a time.
  view<std::int64_t> targets_of_tile(std::size_t slot) const {
    return {reinterpret_cast<std::int64_t*>(tile_tokens[slot].p), tile_tokens[slot].n};
  }
  void load_targets(stream& s, index_t first, index_t n, view<std::int64_t> to) {
    backend.launch(s, elements{n}, token_targets{terms}, plateau::in(in.targets.sub(first, n)),
                   plateau::in(token_weights_of(first, n)), out(to));
  }
};

} // namespace detail

} // namespace plateau::inline v0
