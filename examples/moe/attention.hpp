// SPDX-License-Identifier: Apache-2.0
//
// Causal grouped-query attention in tiles with an online softmax (Milakov & Gimelshein 2018; Dao et al.
// 2022), forward and backward. No sequence x sequence matrix exists: one tile of scores for every (sequence,
// key-value head) at a time. The query heads of a group are folded into rows, so that each product is one
// strided batch.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/rotary.hpp"
#include "layer_buffers.hpp"

#include <plateau/access.hpp>
#include <plateau/kernels.hpp>
#include <plateau/math.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace moe {

// Attention over whole sequences of one length. Buffers are those of layer_buffers; everything is enqueued.
template <class Backend, class Communicator, class T> class attention {
  using stream = typename Backend::stream;

 public:
  // Its memory is the layer's buffers.
  static pl::reservation reserve_for(const model_config&, const batch_limits&) { return {}; }

  // Whole sequences need no other rank, nor a workspace.
  attention(Backend& backend, Communicator*, pl::workspace<Backend>&, const model_config& c,
            const batch_limits& b)
      : backend_(&backend), heads_{0, c.heads, c.kv_heads, c.head_size()}, theta_(c.rope_theta),
        tile_(c.attention),
        score_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_size())))) {
    if (b.sequence_ranks != 1)
      throw pl::config_error("model: this attention is over whole sequences, asked for those that " +
                             std::to_string(b.sequence_ranks) + " ranks share");
  }

  // From flat_query, flat_key, flat_value (before rotation) to `attended`; keeps query, key, value, maximum
  // and sum.
  void forward(stream& s, const layer_buffers<Backend, T>& buf, index_t sequences, index_t context) {
    const shape z(heads_, sequences, context);
    const index_t d = heads_.head_size;
    Backend& be = *backend_;
    pack(s, z, buf.flat_query, heads_.query_heads, buf.query, true, false);
    pack(s, z, buf.flat_key, heads_.kv_heads, buf.key, true, true);
    pack(s, z, buf.flat_value, heads_.kv_heads, buf.value, false, true);
    const auto maximum = buf.maximum.sub(0, z.batches * z.query_rows), sum = buf.sum.sub(0, maximum.n);
    be.launch(s, pl::elements{maximum.n}, pl::fill<float>{pl::lowest<float>()}, pl::out(maximum));
    be.launch(s, pl::elements{sum.n}, pl::fill<float>{0}, pl::out(sum));
    const auto query = z.queries(buf.query), key = z.keys(buf.key), value = z.keys(buf.value);
    for (index_t q0 = 0; q0 < context; q0 += tile_.queries) {
      const index_t positions = std::min(tile_.queries, context - q0), rows = positions * z.group;
      const auto query_tile = query.row_block(q0 * z.group, rows);
      const auto accumulator = z.tiles(buf.accumulator, rows, d);
      be.launch(s, pl::elements{z.batches * rows * d}, pl::fill<float>{0},
                pl::out(buf.accumulator.sub(0, z.batches * rows * d)));
      for (index_t k0 = 0; k0 < q0 + positions; k0 += tile_.keys) {
        const index_t keys = std::min(tile_.keys, context - k0);
        const auto scores = z.tiles(buf.scores, rows, keys);
        const auto probabilities = z.tiles(buf.probabilities, rows, keys);
        be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(query_tile),
                pl::in(key.row_block(k0, keys)), 0.0F, pl::out(scores), buf.scratch);
        be.launch(s, pl::rows{z.batches * rows}, attention_softmax_tile{z.at(q0, k0), score_scale_},
                  pl::in(scores), pl::out(probabilities), pl::inout(maximum), pl::inout(sum),
                  pl::inout(accumulator));
        be.gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(probabilities),
                pl::in(value.row_block(k0, keys)), 1.0F, pl::inout(accumulator), buf.scratch);
      }
      be.launch(s, pl::rows{z.batches * rows}, attention_finish{z.at(q0, 0), z.layout}, pl::in(accumulator),
                pl::in(sum), pl::some(flat(z, buf.attended, heads_.query_heads)));
    }
  }

  // From the gradient of `attended`, given in flat_query, to those of the unrotated queries, keys and values,
  // left in flat_query, flat_key and flat_value. Needs what forward keeps, `attended` included.
  void backward(stream& s, const layer_buffers<Backend, T>& buf, index_t sequences, index_t context) {
    const shape z(heads_, sequences, context);
    const index_t d = heads_.head_size, all_rows = z.batches * z.query_rows, all_keys = z.batches * context;
    Backend& be = *backend_;
    pack(s, z, buf.flat_query, heads_.query_heads, buf.packed_doutput, false, false);
    pack(s, z, buf.attended, heads_.query_heads, buf.packed_output, false, false);
    const auto maximum = buf.maximum.sub(0, all_rows), sum = buf.sum.sub(0, all_rows),
               dots = buf.dots.sub(0, all_rows);
    be.launch(s, pl::rows{all_rows}, attention_row_dots{}, pl::in(buf.packed_output.sub(0, all_rows * d)),
              pl::in(buf.packed_doutput.sub(0, all_rows * d)), d, pl::out(dots));
    const auto clear = [&](pl::view<float> gradient, index_t n) {
      be.launch(s, pl::elements{n}, pl::fill<float>{0}, pl::out(gradient.sub(0, n)));
    };
    clear(buf.dquery, all_rows * d);
    clear(buf.dkey, all_keys * d);
    clear(buf.dvalue, all_keys * d);
    const auto query = z.queries(buf.query), doutput = z.queries(buf.packed_doutput);
    const auto key = z.keys(buf.key), value = z.keys(buf.value);
    const auto dquery = z.queries(buf.dquery);
    const auto dkey = z.keys(buf.dkey), dvalue = z.keys(buf.dvalue);
    for (index_t q0 = 0; q0 < context; q0 += tile_.queries) {
      const index_t positions = std::min(tile_.queries, context - q0), rows = positions * z.group;
      const auto query_tile = query.row_block(q0 * z.group, rows),
                 doutput_tile = doutput.row_block(q0 * z.group, rows);
      for (index_t k0 = 0; k0 < q0 + positions; k0 += tile_.keys) {
        const index_t keys = std::min(tile_.keys, context - k0);
        const auto scores = z.tiles(buf.scores, rows, keys),
                   dprobabilities = z.tiles(buf.dprobabilities, rows, keys);
        const auto probabilities = z.tiles(buf.probabilities, rows, keys),
                   dscores = z.tiles(buf.dscores, rows, keys);
        const auto key_tile = key.row_block(k0, keys), value_tile = value.row_block(k0, keys);
        be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(query_tile), pl::in(key_tile), 0.0F,
                pl::out(scores), buf.scratch);
        be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(doutput_tile), pl::in(value_tile),
                0.0F, pl::out(dprobabilities), buf.scratch);
        be.launch(s, pl::rows{z.batches * rows}, attention_backward_tile{z.at(q0, k0), score_scale_},
                  pl::in(scores), pl::in(dprobabilities), pl::in(maximum), pl::in(sum), pl::in(dots),
                  pl::out(probabilities), pl::out(dscores));
        be.gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(probabilities), pl::in(doutput_tile),
                1.0F, pl::inout(dvalue.row_block(k0, keys)), buf.scratch);
        be.gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(dscores), pl::in(key_tile), 1.0F,
                pl::inout(dquery.row_block(q0 * z.group, rows)), buf.scratch);
        be.gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(dscores), pl::in(query_tile), 1.0F,
                pl::inout(dkey.row_block(k0, keys)), buf.scratch);
      }
    }
    unpack(s, z, buf.dquery.sub(0, all_rows * d), heads_.query_heads, buf.flat_query, true, false);
    unpack(s, z, buf.dkey.sub(0, all_keys * d), heads_.kv_heads, buf.flat_key, true, true);
    unpack(s, z, buf.dvalue.sub(0, all_keys * d), heads_.kv_heads, buf.flat_value, false, true);
  }

 private:
  // How a micro-batch of this size lies in the buffers.
  struct shape {
    head_layout layout;
    index_t batches, group, query_rows; // (sequence, key-value head) pairs; query heads of each; rows of each

    shape(head_layout heads, index_t sequences, index_t context)
        : layout{context, heads.query_heads, heads.kv_heads, heads.head_size},
          batches(sequences * heads.kv_heads), group(heads.query_heads / heads.kv_heads),
          query_rows(context * group), tokens(sequences * context) {}
    template <class U> pl::tile_batch<U> queries(pl::view<U> packed) const {
      return {packed.p,   batches,          query_rows * layout.head_size,
              query_rows, layout.head_size, layout.head_size};
    }
    template <class U> pl::tile_batch<U> keys(pl::view<U> packed) const {
      const index_t context = layout.sequence_length;
      return {packed.p, batches, context * layout.head_size, context, layout.head_size, layout.head_size};
    }
    template <class U> pl::tile_batch<U> tiles(pl::view<U> memory, index_t rows, index_t cols) const {
      return {memory.p, batches, rows * cols, rows, cols, cols};
    }
    attention_tile at(index_t q0, index_t k0) const { return {q0 * group, k0, group, query_rows}; }
    index_t tokens;
  };

  template <class U> static pl::tile<U> flat(const shape& z, pl::view<U> memory, index_t heads) {
    return pl::as_matrix(memory, z.tokens, heads * z.layout.head_size);
  }
  void pack(stream& s, const shape& z, pl::view<T> from, index_t heads, pl::view<T> to, bool rotate,
            bool keys) {
    backend_->launch(s, pl::rows{z.tokens}, rotate_and_pack{z.layout, theta_, rotate, keys},
                     pl::in(flat(z, from, heads)), pl::out(to.sub(0, z.tokens * heads * z.layout.head_size)));
  }
  void unpack(stream& s, const shape& z, pl::view<float> from, index_t heads, pl::view<T> to, bool rotate,
              bool keys) {
    backend_->launch(s, pl::rows{z.tokens}, unpack_and_rotate_back{z.layout, theta_, rotate, keys},
                     pl::in(from), pl::out(flat(z, to, heads)));
  }

  Backend* backend_;
  head_layout heads_;
  double theta_;
  attention_tile_size tile_;
  float score_scale_;
};

} // namespace moe
