// SPDX-License-Identifier: Apache-2.0
//
// The limits and options of a ring attention: what is known before there is an input, which of them cannot
// work, and what all ranks must agree on.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/scalar.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace plateau::inline v0 {

struct attention_shape {
  static constexpr index_t most_head_size = 256;

  index_t tokens = 0;    // of a rank, at most: any number up to it, another one each time
  index_t heads = 0;     // of queries
  index_t kv_heads = 0;  // of keys and values; divides heads
  index_t head_size = 0; // 1 to 256
  attention_mask mask = attention_mask::causal;
  index_t hop_rows = 1024; // keys and values of a sub-block that goes around
  struct tile_extent {
    // Positions, and key heads (0: all). heads / kv_heads times as many rows of queries meet the keys.
    index_t queries = 256, keys = 512, kv_heads = 1;
  } tile{};                 // of the scores that exist at a time
  bool hidden_keys = false; // whether inputs may say of keys that no query sees them; a byte a key travels
  bool forward_only = false;
  float score_scale = 0; // of q . k; 0: 1 / sqrt(head_size)

  constexpr index_t group() const { return heads / kv_heads; }
  constexpr index_t query_columns() const { return heads * head_size; }
  constexpr index_t key_columns() const { return kv_heads * head_size; }
  float scale() const {
    return score_scale != 0 ? score_scale
                            : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_size)));
  }

  // Throws config_error with what cannot work.
  void check() const {
    const auto refuse = [](const std::string& what, const std::string& got) {
      throw config_error("plateau: ring_attention: " + what + ", got " + got);
    };
    const auto extent = [&](const char* what, index_t n, index_t least, index_t most) {
      if (n < least || n > most)
        refuse(std::string(what) + " must be in [" + std::to_string(least) + ", " + std::to_string(most) +
                   ']',
               std::to_string(n));
    };
    extent("tokens", tokens, 0, detail::most_extent);
    extent("heads", heads, 1, index_t{1} << 20);
    extent("kv_heads", kv_heads, 1, heads);
    if (heads % kv_heads != 0)
      refuse("kv_heads must divide the " + std::to_string(heads) + " heads", std::to_string(kv_heads));
    extent("head_size", head_size, 1, most_head_size);
    extent("hop_rows", hop_rows, 1, detail::most_extent);
    extent("tile.queries", tile.queries, 1, detail::most_extent);
    extent("tile.keys", tile.keys, 1, detail::most_extent);
    extent("tile.kv_heads (0: all)", tile.kv_heads, 0, detail::most_extent);
    if (!is_finite(score_scale) || score_scale < 0)
      refuse("score_scale must be positive, or 0 for 1 / sqrt(head_size)", std::to_string(score_scale));
  }

  digest digest_of(scalar_kind type) const {
    digest d;
    d.add("ring_attention").add(type).add(tokens).add(heads).add(kv_heads).add(head_size).add(mask);
    d.add(hop_rows).add(tile.queries).add(tile.keys).add(tile.kv_heads).add(hidden_keys);
    return d.add(forward_only).add(score_scale);
  }
  // What the digest is of, for the error that names both.
  std::string text(scalar_kind type) const {
    const auto list = [](const char* name, auto value) {
      return ", " + std::string(name) + ' ' + std::to_string(value);
    };
    return std::string(scalar_name(type)) + list("tokens", tokens) + list("heads", heads) +
           list("kv_heads", kv_heads) + list("head_size", head_size) +
           (mask == attention_mask::causal ? ", causal" : ", full") + list("hop_rows", hop_rows) +
           list("tile", tile.queries) + 'x' + std::to_string(tile.keys) + 'x' +
           std::to_string(tile.kv_heads) + list("hidden keys", hidden_keys) +
           list("forward only", forward_only) + list("score_scale", score_scale);
  }
};

} // namespace plateau::inline v0
