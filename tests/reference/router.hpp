// SPDX-License-Identifier: Apache-2.0
//
// The router of Mixtral in float64: softmax over all experts, the k most probable (the lower index on a tie),
// their probabilities renormalised to gates that sum to 1; and the loss that balances the load of the
// experts.
#pragma once

#include "tensor.hpp"

#include <algorithm>
#include <numeric>

namespace reference {

struct routing {
  index rows = 0, experts = 0, top_k = 0;
  vec probability;           // (rows, experts), the softmax
  std::vector<index> expert; // (rows, top_k), most probable first
  vec gate;                  // (rows, top_k), sums to 1 in each row
};

inline vec softmax_rows(vec z, index rows, index columns) {
  require_size(z, rows * columns, "the logits");
  for (index r = 0; r < rows; ++r) {
    double* row = z.data() + r * columns;
    const double largest = *std::max_element(row, row + columns);
    double sum = 0;
    for (index i = 0; i < columns; ++i) sum += row[i] = std::exp(row[i] - largest);
    for (index i = 0; i < columns; ++i) row[i] /= sum;
  }
  return z; // (rows, columns)
}

/// Gates for experts that somebody else chose.  expert (rows, top_k)
inline routing route_to(const vec& logits, std::vector<index> expert, index rows, index experts,
                        index top_k) {
  routing out{
      rows, experts, top_k, softmax_rows(logits, rows, experts), std::move(expert), zeros(rows * top_k)};
  require(static_cast<index>(out.expert.size()) == rows * top_k, "expert must be (rows, top_k)");
  for (index r = 0; r < rows; ++r) {
    double sum = 0;
    for (index s = 0; s < top_k; ++s) sum += out.probability[r * experts + out.expert[r * top_k + s]];
    for (index s = 0; s < top_k; ++s)
      out.gate[r * top_k + s] = out.probability[r * experts + out.expert[r * top_k + s]] / sum;
  }
  return out;
}

/// logits (rows, experts)
inline routing route(const vec& logits, index rows, index experts, index top_k) {
  require(top_k >= 1 && top_k <= experts, "top_k must lie in [1, experts]");
  const vec probability = softmax_rows(logits, rows, experts);
  std::vector<index> chosen;
  for (index r = 0; r < rows; ++r) {
    const double* p = probability.data() + r * experts;
    std::vector<index> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), index{0});
    std::stable_sort(order.begin(), order.end(), [p](index a, index b) { return p[a] > p[b]; });
    chosen.insert(chosen.end(), order.begin(), order.begin() + top_k);
  }
  return route_to(logits, std::move(chosen), rows, experts, top_k);
}

/// The choice itself has no gradient. `dprobability` (rows, experts) is what reaches the softmax from
/// elsewhere, the balance loss; it may be empty.  dgate (rows, top_k) -> dlogits (rows, experts)
inline vec route_backward(const routing& r, const vec& dgate, const vec& dprobability = {}) {
  require_size(dgate, r.rows * r.top_k, "dgate");
  vec dp = dprobability.empty() ? zeros(r.rows * r.experts) : dprobability;
  require_size(dp, r.rows * r.experts, "dprobability");
  vec dlogits = zeros(r.rows * r.experts);
  for (index t = 0; t < r.rows; ++t) {
    double sum = 0, along = 0; // gate_s = p_s / sum, so dp_s = (dgate_s - along) / sum
    for (index s = 0; s < r.top_k; ++s) {
      sum += r.probability[t * r.experts + r.expert[t * r.top_k + s]];
      along += dgate[t * r.top_k + s] * r.gate[t * r.top_k + s];
    }
    for (index s = 0; s < r.top_k; ++s)
      dp[t * r.experts + r.expert[t * r.top_k + s]] += (dgate[t * r.top_k + s] - along) / sum;

    double mean = 0;
    for (index e = 0; e < r.experts; ++e) mean += dp[t * r.experts + e] * r.probability[t * r.experts + e];
    for (index e = 0; e < r.experts; ++e)
      dlogits[t * r.experts + e] = r.probability[t * r.experts + e] * (dp[t * r.experts + e] - mean);
  }
  return dlogits;
}

/// The balance loss over a set of rows: experts * sum over e of f_e P_e, where f_e is the number of routes to
/// e divided by the number of rows (so that all f sum to top_k), and P_e the mean probability of e. An even
/// load gives top_k.
///
/// `pooled` takes the rows of all layers as one set, as transformers does for Mixtral; `per_layer` is the
/// mean over layers of each layer's own loss. They are equal for one layer.
enum class balance_form { pooled, per_layer };

struct balance {
  double loss = 0;
  std::vector<vec> dprobability; // per layer (rows, experts), of the unweighted loss; f counts as a constant
};

inline balance balance_loss(const std::vector<routing>& layers, balance_form form = balance_form::pooled) {
  balance out;
  const auto add_set = [&out](const routing* first, const routing* last, double weight) {
    const index experts = first->experts;
    vec f = zeros(experts), p = zeros(experts);
    index rows = 0;
    for (const routing* r = first; r != last; ++r) {
      rows += r->rows;
      for (const index e : r->expert) f[e] += 1;
      for (index t = 0; t < r->rows; ++t)
        for (index e = 0; e < experts; ++e) p[e] += r->probability[t * experts + e];
    }
    const double n = static_cast<double>(rows), scale = weight * static_cast<double>(experts);
    for (index e = 0; e < experts; ++e) out.loss += scale * (f[e] / n) * (p[e] / n);
    for (const routing* r = first; r != last; ++r) {
      vec d = zeros(r->rows * experts);
      for (index t = 0; t < r->rows; ++t)
        for (index e = 0; e < experts; ++e) d[t * experts + e] = scale * (f[e] / n) / n;
      out.dprobability.push_back(std::move(d));
    }
  };
  const routing* all = layers.data();
  const routing* end = all + layers.size();
  if (form == balance_form::pooled) {
    add_set(all, end, 1.0);
  } else {
    for (const routing* r = all; r != end; ++r) add_set(r, r + 1, 1.0 / static_cast<double>(layers.size()));
  }
  return out;
}

} // namespace reference
