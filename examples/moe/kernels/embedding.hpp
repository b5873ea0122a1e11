// SPDX-License-Identifier: Apache-2.0
//
// Token embedding. The backward gets its rows grouped by token (`order` and `offsets` of the backend's
// group_by_key), so that every row of the table has one writer and its summands come in the order of the
// batch: no atomics, the same bits each run.
#pragma once

#include "types.hpp"

namespace moe {

// Over rows{tokens}. A token that is not in the table gives zeros.
struct embed {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row,
                             view<const std::int32_t> tokens, // (tokens)
                             tile<const T> table,             // (vocabulary, hidden)
                             tile<T> x) const {               // (tokens, hidden), written
    const index_t token = tokens[row];
    T* to = x.row(row);
    if (token < 0 || token >= table.rows) {
      team.for_each(x.cols, [=](index_t c) { to[c] = narrow<T>(0.0f); });
      return;
    }
    const T* from = table.row(token);
    team.for_each(x.cols, [=](index_t c) { copy_element(from[c], to[c]); });
  }
};

// Over rows{vocabulary}: adds to the table's gradient row v the rows dx[order[i]], i in [offsets[v],
// offsets[v + 1]), one after the other. Rows of tokens that do not occur are neither read nor written.
struct embed_backward {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t v,
                             view<const std::int32_t> order,   // (tokens)
                             view<const std::int64_t> offsets, // (vocabulary + 1)
                             tile<const T> dx,                 // (tokens, hidden)
                             tile<float> dtable) const {       // (vocabulary, hidden), added to
    const index_t end = offsets[v + 1], n = dx.cols;
    float* to = dtable.row(v);
    index_t i = offsets[v];
    for (; i + 4 <= end; i += 4) { // four at a time: a pass over the sum costs as much as a pass over a row
      const T* a = dx.row(order[i]);
      const T* b = dx.row(order[i + 1]);
      const T* c = dx.row(order[i + 2]);
      const T* d = dx.row(order[i + 3]);
      team.for_each(
          n, [=](index_t j) { to[j] = (((to[j] + widen(a[j])) + widen(b[j])) + widen(c[j])) + widen(d[j]); });
    }
    for (; i < end; ++i) {
      const T* a = dx.row(order[i]);
      team.for_each(n, [=](index_t j) { to[j] += widen(a[j]); });
    }
  }
};

} // namespace moe
