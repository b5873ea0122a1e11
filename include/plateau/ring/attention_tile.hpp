// SPDX-License-Identifier: Apache-2.0
//
// Where queries and keys of an attention meet: rows of consecutive positions on both sides, and which of the
// keys each query sees. Known by arithmetic: no array of positions or of a mask exists anywhere. What is done
// with such a block may be a kernel of yours, FlashAttention for instance, that yields (out, lse); the
// concept says how it is called.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <concepts>

namespace plateau::inline v0 {

// The columns [first, end) of a tile.
struct attention_columns {
  index_t first = 0, end = 0;
  PLATEAU_HD constexpr index_t count() const { return end - first; }
};

// Which of consecutive keys each of consecutive queries sees. A value of a few words, for host and device.
struct attention_tile_mask {
  static constexpr index_t most_documents = 16; // that the queries of one tile belong to

  position_range queries{}, keys{};
  bool causal = true;
  index_t documents = 0; // document d of the tile: positions [begins[d], begins[d + 1])
  index_t begins[most_documents + 1] = {};

  // The keys that query i of the tile sees, of those of the tile; empty ones begin at 0.
  PLATEAU_HD constexpr attention_columns seen(index_t i) const {
    const index_t position = queries.first + i;
    index_t d = 0;
    while (d + 1 < documents && position >= begins[d + 1]) ++d;
    const index_t end = causal ? position + 1 : begins[d + 1];
    const index_t first = begins[d] - keys.first, last = end - keys.first;
    const index_t from = first < 0 ? 0 : first, to = last < keys.rows ? last : keys.rows;
    return from < to ? attention_columns{from, to} : attention_columns{};
  }
  // Whether every query sees every key.
  constexpr bool whole() const {
    return documents == 1 && begins[0] <= keys.first &&
           keys.end() <= (causal ? queries.first + 1 : begins[1]);
  }
};

// Queries, and keys and values, that meet. Heads lie side by side in a row; heads / kv_heads query heads
// share a key head: query head h sees key head h kv_heads / heads.
template <class T> struct attention_block {
  tile<const T> q;                         // (queries, heads x head_size)
  tile<const T> k, v;                      // (keys, kv_heads x head_size)
  attention_tile_mask mask;                // of which query sees which key
  view<const unsigned char> hidden_keys{}; // (keys): not 0 where no query sees the key; or empty
  index_t heads = 1, kv_heads = 1, head_size = 1;
  float score_scale = 1; // of q . k
};

// A kernel of the user's for such a block. It only enqueues on the stream, and may use the scratch that it
// asked for. A block has at most shape.tile.queries queries and shape.hop_rows keys.
//
//   K::scratch_bytes(shape)      for the largest block; part of the operator's working set
//   K::check(shape)              optional: throws config_error for what it does not support
//   forward(backend, stream, block, out, lse, scratch)
//       writes out (queries, heads x head_size): the mean of the values that a query sees in this block, and
//       lse (heads, queries): the log of its sum of e^score; -infinity where it sees none, and then out is
//       not looked at
//   backward(backend, stream, block, out, lse, dout, dq, dk, dv, scratch)
//       out and lse of all keys, +infinity where a query sees none, so that e^(score - lse) is its share;
//       adds to dq (queries, heads x head_size), dk and dv (keys, kv_heads x head_size), all fp32
template <class K, class Backend, class T>
concept attention_tile_kernel = requires(K& kernel, Backend& backend, typename Backend::stream& stream,
                                         const attention_shape& shape, const attention_block<T>& block,
                                         tile<T> out, tile<const T> from, tile<float> sums,
                                         tile<const float> lse, scratch_view scratch) {
  { K::scratch_bytes(shape) } -> std::convertible_to<index_t>;
  kernel.forward(backend, stream, block, out, sums, scratch);
  kernel.backward(backend, stream, block, from, lse, from, sums, sums, sums, scratch);
};

// The default: products of the backend, and row kernels between them.
struct attention_by_gemm {};

} // namespace plateau::inline v0
