// SPDX-License-Identifier: Apache-2.0
//
// A linear cross-entropy as anyone would write it, in float64, with all logits in one matrix: losses, their
// reduction, and the gradients of everything.
#pragma once

#include "reference/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace reference {

struct linear_loss {
  index tokens = 0, hidden = 0, vocabulary = 0;
  vec x, weight;                            // (tokens, hidden), (vocabulary, hidden)
  std::vector<std::int64_t> targets;        // (tokens)
  vec bias, class_weights, token_weights{}; // empty, or (vocabulary), (vocabulary), (tokens)
  std::int64_t ignore_index = -100;
  double smoothing = 0, z_loss = 0, soft_cap = 0, scale = 1;

  struct result {
    vec losses, lses, log_probabilities, weights; // (tokens); weights: of those that count, 0 elsewhere
    vec entropies;                                // (tokens)
    std::vector<std::int64_t> argmaxes;           // (tokens): the lowest of equal ones
    double sum() const {
      double all = 0;
      for (const double l : losses) all += l;
      return all;
    }
    double weight() const {
      double all = 0;
      for (const double w : weights) all += w;
      return all;
    }
  };
  struct gradients {
    vec x, weight, bias, logits;
  };

  bool counts(index i) const {
    const std::int64_t t = targets[at(i)];
    return t != ignore_index && t >= 0 && t < vocabulary && token_weight(i) != 0;
  }
  double token_weight(index i) const { return token_weights.empty() ? 1.0 : token_weights[at(i)]; }
  double class_weight(index v) const { return class_weights.empty() ? 1.0 : class_weights[at(v)]; }
  double logit(index i, index v) const {
    double u = bias.empty() ? 0.0 : bias[at(v)];
    for (index h = 0; h < hidden; ++h) u += x[at(i * hidden + h)] * weight[at(v * hidden + h)];
    u *= scale;
    return soft_cap == 0 ? u : soft_cap * std::tanh(u / soft_cap);
  }
  vec row(index i) const {
    vec z;
    for (index v = 0; v < vocabulary; ++v) z.push_back(logit(i, v));
    return z;
  }
  static double lse_of(const vec& z) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const double v : z) largest = v > largest ? v : largest;
    for (const double v : z) sum += std::exp(v - largest);
    return largest + std::log(sum);
  }

  result forward() const {
    result out;
    for (index i = 0; i < tokens; ++i) {
      const vec z = row(i);
      const double lse = lse_of(z);
      out.lses.push_back(lse);
      double entropy = 0;
      for (const double v : z)
        if (std::exp(v - lse) > 0) entropy += std::exp(v - lse) * (lse - v);
      out.entropies.push_back(entropy);
      out.argmaxes.push_back(std::max_element(z.begin(), z.end()) - z.begin());
      if (!counts(i)) {
        for (vec* v : {&out.losses, &out.log_probabilities, &out.weights}) v->push_back(0);
        continue;
      }
      const index t = targets[at(i)];
      double loss = (1 - smoothing) * class_weight(t) * (lse - z[at(t)]) + z_loss * lse * lse;
      for (index v = 0; smoothing != 0 && v < vocabulary; ++v)
        loss += smoothing / static_cast<double>(vocabulary) * class_weight(v) * (lse - z[at(v)]);
      out.losses.push_back(token_weight(i) * loss);
      out.log_probabilities.push_back(z[at(t)] - lse);
      out.weights.push_back(token_weight(i) * class_weight(t));
    }
    return out;
  }

  // Of the sum over tokens of factor[i] x their loss.
  gradients backward(const vec& factor) const {
    gradients g;
    g.x.assign(at(tokens * hidden), 0);
    g.weight.assign(at(vocabulary * hidden), 0);
    g.bias.assign(at(vocabulary), 0);
    g.logits.assign(at(tokens * vocabulary), 0);
    for (index i = 0; i < tokens; ++i) {
      if (!counts(i)) continue;
      const vec z = row(i);
      const double lse = lse_of(z), f = factor[at(i)] * token_weight(i);
      const index t = targets[at(i)];
      double all = (1 - smoothing) * class_weight(t) + 2 * z_loss * lse;
      for (index v = 0; v < vocabulary; ++v)
        all += smoothing / static_cast<double>(vocabulary) * class_weight(v);
      for (index v = 0; v < vocabulary; ++v) {
        double d =
            std::exp(z[at(v)] - lse) * all - smoothing / static_cast<double>(vocabulary) * class_weight(v);
        if (v == t) d -= (1 - smoothing) * class_weight(t);
        const double c = soft_cap == 0 ? 0 : z[at(v)] / soft_cap;
        d *= f * scale * (1 - c * c);
        g.logits[at(i * vocabulary + v)] = d;
        g.bias[at(v)] += d;
        for (index h = 0; h < hidden; ++h) {
          g.x[at(i * hidden + h)] += d * weight[at(v * hidden + h)];
          g.weight[at(v * hidden + h)] += d * x[at(i * hidden + h)];
        }
      }
    }
    return g;
  }

 private:
  static std::size_t at(index i) { return static_cast<std::size_t>(i); }
};

} // namespace reference
