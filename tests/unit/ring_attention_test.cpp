// SPDX-License-Identifier: Apache-2.0
//
// Ring attention against float64 on one rank: any number of ranks, any split, documents across shards,
// lengths off every tile.
#include "support/attention_cases.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::attention_mask, pl::sequence_split;
using support::attention_case, support::run_attention, support::values_of;

namespace {

using threads = support::on_threads<>;

attention_case case_of(sequence_split split, attention_mask mask) {
  attention_case c;
  c.split = std::move(split);
  c.shape.heads = 4;
  c.shape.kv_heads = 2;
  c.shape.head_size = 8;
  c.shape.mask = mask;
  c.shape.tile = {10, 14, 1};
  c.shape.hop_rows = 16;
  return c;
}
template <class T> void check(const attention_case& c) {
  const auto values = values_of<T>(c);
  check_attention(c, values, run_attention<T>(c, values, threads{}));
}

} // namespace

TEST_CASE("1, 2, 3, 4, 8 ranks: outputs, states and gradients agree with one rank in float64") {
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full})
    for (const int ranks : {1, 2, 3, 4, 8}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(mask));
      check<float>(case_of(sequence_split::balanced(117, ranks), mask));
      check<pl::bfloat16>(case_of(sequence_split::contiguous(117, ranks), mask));
    }
}
