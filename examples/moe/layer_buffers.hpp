// SPDX-License-Identifier: Apache-2.0
//
// The intermediates of one layer's forward and backward, taken from a workspace phase. One set serves every
// layer. The list is written once: the same constructor either counts the bytes of the promise or takes the
// memory, so that the two cannot disagree.
#pragma once

#include "model_config.hpp"
#include "scratch_need.hpp"

#include <plateau/gemm.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace moe {

namespace pl = plateau;

// Tokens in one chunk of the router.
inline constexpr index_t router_chunk = 2048;

// What a set of buffers must serve. Backward computes the forward again, so it needs that one's buffers too.
enum class layer_pass : unsigned char { forward, backward };

template <class Backend, class T> struct layer_buffers {
  // tokens n, hidden h, queries = heads * head_size, keys = kv_heads * head_size; "packed" as in
  // kernels/rotary.hpp; batches = sequences * kv_heads
  pl::view<T> normed, residual, post_normed;    // (n, h)
  pl::view<T> flat_query, flat_key, flat_value; // (n, queries), (n, keys) twice; also their gradients
  pl::view<T> attended;                         // (n, queries)
  pl::view<T> query, key, value;                // packed; flat where ranks share a sequence
  pl::view<pl::online_lse> states; // (n, heads), where ranks share a sequence; else the next five
  pl::view<float> maximum, sum;    // (n * heads), packed
  pl::view<float> scores;          // (batches, tile rows, tile keys)
  pl::view<T> probabilities;       // (batches, tile rows, tile keys)
  pl::view<float> accumulator;     // (batches, tile rows, head_size)
  pl::view<float> logits, router_probabilities; // (chunk, experts)
  pl::view<std::int32_t> ids;                   // (n, top_k)
  pl::view<float> gates;                        // (n, top_k)
  pl::scratch_view scratch;

  // Backward only
  pl::view<T> dnormed;                       // (n, h)
  pl::view<float> gain_terms;                // (n, h)
  pl::view<T> turned_dquery, turned_dkey;    // (n, queries), (n, keys), where ranks share a sequence; else:
  pl::view<T> packed_output, packed_doutput; // packed as queries
  pl::view<float> dquery, dkey, dvalue;      // packed, fp32 accumulators
  pl::view<float> dots;                      // (n * heads), packed
  pl::view<float> dprobabilities;            // (batches, tile rows, tile keys)
  pl::view<T> dscores;                       // (batches, tile rows, tile keys)
  pl::view<T> dlogits;                       // (chunk, experts)
  pl::view<float> dgates;                    // (n, top_k)
  pl::view<std::int64_t> token_offsets;      // (vocabulary + 1), for the embedding's gradient

  // `most_scratch`: what somebody else needs of the scratch.
  template <class Source>
  layer_buffers(Source& from, const model_config& c, const batch_limits& b, layer_pass pass,
                std::size_t most_scratch) {
    const index_t n = b.tokens(), h = c.hidden, d = c.head_size();
    const index_t queries = c.heads * d, keys = c.kv_heads * d, group = c.heads / c.kv_heads;
    const index_t tile_rows = b.sequences * c.kv_heads * std::min(c.attention.queries, b.context) * group;
    const index_t tile = tile_rows * std::min(c.attention.keys, b.context);
    const index_t chunk = std::min(n, router_chunk);
    const bool shared = b.sequence_ranks > 1; // then attention's own memory is the ring's
    normed = from.template device<T>("normalised input", n * h);
    residual = from.template device<T>("after attention", n * h);
    post_normed = from.template device<T>("normalised after attention", n * h);
    flat_query = from.template device<T>("queries", n * queries);
    flat_key = from.template device<T>("keys", n * keys);
    flat_value = from.template device<T>("values", n * keys);
    attended = from.template device<T>("attention output", n * queries);
    query = from.template device<T>("packed queries", n * queries);
    key = from.template device<T>("packed keys", n * keys);
    value = from.template device<T>("packed values", n * keys);
    if (shared) {
      states = from.template device<pl::online_lse>("softmax states", n * c.heads);
    } else {
      maximum = from.template device<float>("softmax maximum", n * c.heads);
      sum = from.template device<float>("softmax sum", n * c.heads);
      scores = from.template device<float>("score tile", tile);
      probabilities = from.template device<T>("probability tile", tile);
      accumulator = from.template device<float>("attention accumulator", tile_rows * d);
    }
    logits = from.template device<float>("router logits", chunk * c.experts);
    router_probabilities = from.template device<float>("router probabilities", chunk * c.experts);
    ids = from.template device<std::int32_t>("expert of each route", n * c.top_k);
    gates = from.template device<float>("gates", n * c.top_k);
    scratch = from.template device<unsigned char>(
        "scratch", static_cast<index_t>(std::max(most_scratch, scratch_bytes(c, b))));
    if (pass == layer_pass::forward) return;

    dnormed = from.template device<T>("gradient of a normalised input", n * h);
    gain_terms = from.template device<float>("terms of a gain's gradient", n * h);
    if (shared) {
      turned_dquery = from.template device<T>("gradient of turned queries", n * queries);
      turned_dkey = from.template device<T>("gradient of turned keys", n * keys);
    } else {
      packed_output = from.template device<T>("packed attention output", n * queries);
      packed_doutput = from.template device<T>("packed output gradient", n * queries);
      dquery = from.template device<float>("query gradient", n * queries);
      dkey = from.template device<float>("key gradient", n * keys);
      dvalue = from.template device<float>("value gradient", n * keys);
      dots = from.template device<float>("output times its gradient", n * c.heads);
      dprobabilities = from.template device<float>("probability gradient tile", tile);
      dscores = from.template device<T>("score gradient tile", tile);
    }
    dlogits = from.template device<T>("router gradient", chunk * c.experts);
    dgates = from.template device<float>("gate gradients", n * c.top_k);
    token_offsets = from.template device<std::int64_t>("first use of each token", c.vocabulary + 1);
  }

  static std::size_t scratch_bytes(const model_config& c, const batch_limits& b) {
    using pl::transpose;
    const index_t n = b.tokens(), h = c.hidden, d = c.head_size();
    const index_t queries = c.heads * d, keys = c.kv_heads * d;
    const index_t tile_rows = std::min(c.attention.queries, b.context) * (c.heads / c.kv_heads);
    const index_t tile_keys = std::min(c.attention.keys, b.context), chunk = std::min(n, router_chunk);
    scratch_need<Backend> need;
    need.template linear<T>(n, h, queries).template linear<T>(n, h, keys).template linear<T>(n, queries, h);
    need.template linear<T>(chunk, h, c.experts);
    if (b.sequence_ranks == 1) {
      need.template gemm<T, T, float>(transpose::no, transpose::yes, tile_rows, tile_keys, d);
      need.template gemm<T, T, float>(transpose::no, transpose::no, tile_rows, d, tile_keys);
      need.template gemm<T, T, float>(transpose::yes, transpose::no, tile_keys, d, tile_rows);
    }
    return need.group_by_key(n, c.vocabulary).column_sum(n, h).column_sum(chunk, c.experts).bytes();
  }
};

// The same, and behind it what the layer's dispatch wants to have beside them: DispatchPart(source, config,
// limits), and its scratch.
template <class Backend, class T, class DispatchPart> struct layer_memory : layer_buffers<Backend, T> {
  DispatchPart dispatch;

  static pl::working_set working_set(const model_config& c, const batch_limits& b, layer_pass pass) {
    pl::working_set set(pl::tag::activations);
    pl::counting_source source(set);
    layer_memory(source, c, b, pass);
    return set;
  }

  template <class Source>
  layer_memory(Source& from, const model_config& c, const batch_limits& b, layer_pass pass)
      : layer_buffers<Backend, T>(from, c, b, pass, DispatchPart::scratch_bytes(c, b)), dispatch(from, c, b) {
  }
};

} // namespace moe
