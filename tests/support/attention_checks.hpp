// SPDX-License-Identifier: Apache-2.0
//
// A few ring attentions that ranks of any kind must get right: causal and full, heads in groups, documents
// across shards, hidden keys, ranks without rows, lengths off every tile.
#pragma once

#include "support/attention_cases.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace support {

inline std::vector<attention_case> attention_cases_for(int ranks) {
  std::vector<attention_case> out;
  for (int i = 0; i < 3; ++i) {
    attention_case c;
    c.split =
        i == 0 ? pl::sequence_split::balanced(61, ranks) : pl::sequence_split::contiguous(ranks + 45, ranks);
    c.shape.heads = 4;
    c.shape.kv_heads = i == 1 ? 4 : 2;
    c.shape.head_size = i == 2 ? 40 : 8;
    c.shape.tile = {10, 14, i};
    if (i == 0) c.shape.tile.kv_heads = 1;
    c.shape.hop_rows = 12;
    if (i == 1) c.shape.mask = pl::attention_mask::full;
    if (i == 1 && ranks > 1) { // the last rank has nothing
      std::vector<std::vector<pl::position_range>> chunks(static_cast<std::size_t>(ranks));
      chunks[0] = {{20, 26}, {0, 7}};
      chunks[static_cast<std::size_t>(ranks) - 2].push_back({7, 13});
      c.split = pl::sequence_split::of(46, chunks);
    }
    if (i == 2) c.shape.hidden_keys = true, c.hide_every = 3, c.agreed = true, c.skew = 1, c.spare = 3;
    if (i != 0) c.cu_seqlens = {0, 1, 2, 2, 30, c.tokens()};
    if (i == 0) c.forwards = 2, c.backwards = 2;
    out.push_back(c);
  }
  return out;
}

template <class T, class On> void check_attentions(const On& on, int least_ranks, int most_ranks) {
  for (int ranks = least_ranks; ranks <= most_ranks; ++ranks)
    for (const attention_case& c : attention_cases_for(ranks)) {
      CAPTURE(ranks);
      const auto values = values_of<T>(c);
      check_attention(c, values, run_attention<T>(c, values, on));
    }
}

} // namespace support
