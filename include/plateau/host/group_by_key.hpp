// SPDX-License-Identifier: Apache-2.0
//
// Stable grouping of numbered keys by counting (Knuth, The Art of Computer Programming vol. 3, 5.2,
// distribution counting) and the exclusive scan it needs: the host's versions of what CUB gives on CUDA.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0::host {

// sums[i] = values[0] + ... + values[i - 1]; sums has one element more than values, the last is the total.
template <class S> void exclusive_scan(view<const std::int64_t, S> values, view<std::int64_t, S> sums) {
  std::int64_t sum = 0;
  for (index_t i = 0; i < values.n; ++i) {
    sums[i] = sum;
    sum += values[i];
  }
  sums[values.n] = sum;
}

// order: the positions 0..n-1, those of key 0 first, then of key 1, ..., then those of keys outside [0,
// keys), each group in ascending order. offsets[k] is where group k begins; offsets has keys + 1 elements.
// `next` is scratch of keys + 1 elements.
template <class Order, class S>
void group_by_key(view<const std::int32_t, S> ids, view<Order, S> order, view<std::int64_t, S> offsets,
                  std::int64_t* next) {
  const index_t keys = offsets.n - 1;
  const auto group_of = [keys](std::int32_t id) { return id >= 0 && id < keys ? index_t{id} : keys; };
  for (index_t k = 0; k <= keys; ++k) next[k] = 0;
  for (index_t i = 0; i < ids.n; ++i) ++next[group_of(ids[i])];
  std::int64_t first = 0;
  for (index_t k = 0; k <= keys; ++k) {
    offsets[k] = first;
    first += next[k];
    next[k] = offsets[k];
  }
  for (index_t i = 0; i < ids.n; ++i) order[next[group_of(ids[i])]++] = static_cast<Order>(i);
}

} // namespace plateau::inline v0::host
