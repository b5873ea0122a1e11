// SPDX-License-Identifier: Apache-2.0
//
// Attention over one sequence of packed documents as anyone would write it, in float64, a row of scores at a
// time: causal or full, query heads in groups, keys that nobody may see, and the gradients of everything. A
// query that sees no key at all has the output 0, the lse -infinity, and no gradient.
#pragma once

#include "reference/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace reference {

struct packed_attention {
  index tokens = 0, heads = 1, kv_heads = 1, head_dim = 1;
  bool causal = true;
  vec q{}, k{}, v{};               // (tokens, heads, head_dim), (tokens, kv_heads, head_dim) twice
  std::vector<index> cu_seqlens{}; // empty: one document
  std::vector<char> hidden_keys{}; // empty, or (tokens): not 0 where no query sees the key
  double scale = 0;                // of scores; 0: 1 / sqrt(head_dim)

  struct result {
    vec out; // (tokens, heads, head_dim)
    vec lse; // (tokens, heads): log of the sum of e^score
  };
  struct gradients {
    vec dq, dk, dv;
  };

  index document_of(index position) const {
    index d = 0;
    while (d + 1 < static_cast<index>(cu_seqlens.size()) && cu_seqlens[at(d + 1)] <= position) ++d;
    return d;
  }
  bool sees(index query, index key) const {
    if (causal && key > query) return false;
    if (!hidden_keys.empty() && hidden_keys[at(key)] != 0) return false;
    return document_of(query) == document_of(key);
  }

  result forward() const {
    check();
    result r{zeros(tokens * heads * head_dim), zeros(tokens * heads)};
    for (index t = 0; t < tokens; ++t)
      for (index h = 0; h < heads; ++h) {
        const row w = weights(t, h);
        r.lse[at(t * heads + h)] = w.lse;
        for (std::size_t j = 0; j < w.keys.size(); ++j)
          for (index i = 0; i < head_dim; ++i)
            r.out[query_at(t, h) + at(i)] += w.weight[j] * v[key_at(w.keys[j], h) + at(i)];
      }
    return r;
  }

  // dout like out; dlse, like lse, is the gradient of the logarithms where somebody uses them, else empty.
  gradients backward(const vec& dout, const vec& dlse = {}) const {
    check();
    require_size(dout, tokens * heads * head_dim, "dout");
    gradients g{zeros(tokens * heads * head_dim), zeros(tokens * kv_heads * head_dim),
                zeros(tokens * kv_heads * head_dim)};
    const double scaled = score_scale();
    for (index t = 0; t < tokens; ++t)
      for (index h = 0; h < heads; ++h) {
        const row w = weights(t, h);
        const std::size_t query = query_at(t, h);
        vec dweight = zeros(static_cast<index>(w.keys.size()));
        double mean = dlse.empty() ? 0.0 : -dlse[at(t * heads + h)]; // what the softmax takes off each
        for (std::size_t j = 0; j < w.keys.size(); ++j) {
          const std::size_t key = key_at(w.keys[j], h);
          for (index i = 0; i < head_dim; ++i) {
            dweight[j] += dout[query + at(i)] * v[key + at(i)];
            g.dv[key + at(i)] += w.weight[j] * dout[query + at(i)];
          }
          mean += w.weight[j] * dweight[j];
        }
        for (std::size_t j = 0; j < w.keys.size(); ++j) {
          const std::size_t key = key_at(w.keys[j], h);
          const double dscore = w.weight[j] * (dweight[j] - mean) * scaled;
          for (index i = 0; i < head_dim; ++i) {
            g.dq[query + at(i)] += dscore * k[key + at(i)];
            g.dk[key + at(i)] += dscore * q[query + at(i)];
          }
        }
      }
    return g;
  }

 private:
  // The keys that a query sees, and what it gives to each.
  struct row {
    std::vector<index> keys;
    vec weight;
    double lse = -std::numeric_limits<double>::infinity();
  };

  static std::size_t at(index n) { return static_cast<std::size_t>(n); }
  std::size_t query_at(index t, index h) const { return at((t * heads + h) * head_dim); }
  std::size_t key_at(index t, index h) const { // of the query head h
    return at((t * kv_heads + h / (heads / kv_heads)) * head_dim);
  }
  double score_scale() const { return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim)); }
  void check() const {
    require(kv_heads > 0 && heads % kv_heads == 0, "kv_heads must divide heads");
    require_size(q, tokens * heads * head_dim, "q");
    require_size(k, tokens * kv_heads * head_dim, "k");
    require_size(v, tokens * kv_heads * head_dim, "v");
    require(cu_seqlens.empty() || (cu_seqlens.front() == 0 && cu_seqlens.back() == tokens),
            "cu_seqlens must go from 0 to the tokens");
  }
  row weights(index t, index h) const {
    row r;
    for (index u = 0; u < tokens; ++u) {
      if (!sees(t, u)) continue;
      double score = 0;
      for (index i = 0; i < head_dim; ++i) score += q[query_at(t, h) + at(i)] * k[key_at(u, h) + at(i)];
      r.keys.push_back(u);
      r.weight.push_back(score * score_scale());
    }
    if (r.keys.empty()) return r;
    const double largest = *std::max_element(r.weight.begin(), r.weight.end());
    double sum = 0;
    for (double& value : r.weight) sum += value = std::exp(value - largest);
    for (double& value : r.weight) value /= sum;
    r.lse = largest + std::log(sum);
    return r;
  }
};

} // namespace reference
