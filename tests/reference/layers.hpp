// SPDX-License-Identifier: Apache-2.0
//
// The layers of a mixture-of-experts transformer in float64, forward and backward, each usable alone as an
// oracle: RMSNorm, rotary positions, causal grouped-query attention, router, SwiGLU, softmax cross-entropy. A
// backward takes what its forward took and the gradient of what it returned, and returns gradients; it saves
// nothing and recomputes what it needs, so it cannot depend on anybody's idea of what to save.
#pragma once

#include "tensor.hpp"

#include <algorithm>
#include <numeric>

namespace reference {

// ---- RMSNorm: y = gain * x / sqrt(mean(x^2) + epsilon), per row

inline vec rms_norm(const vec& x, const vec& gain, index rows, index hidden, double epsilon) {
  require_size(x, rows * hidden, "x"); // (rows, hidden)
  require_size(gain, hidden, "gain");  // (hidden)
  vec y = zeros(rows * hidden);
  for (index r = 0; r < rows; ++r) {
    double squares = 0;
    for (index i = 0; i < hidden; ++i) squares += x[r * hidden + i] * x[r * hidden + i];
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + epsilon);
    for (index i = 0; i < hidden; ++i) y[r * hidden + i] = gain[i] * x[r * hidden + i] * inverse;
  }
  return y; // (rows, hidden)
}

struct rms_norm_gradients {
  vec dx;    // (rows, hidden)
  vec dgain; // (hidden)
};

inline rms_norm_gradients rms_norm_backward(const vec& dy, const vec& x, const vec& gain, index rows,
                                            index hidden, double epsilon) {
  require_size(dy, rows * hidden, "dy");
  rms_norm_gradients g{zeros(rows * hidden), zeros(hidden)};
  const double n = static_cast<double>(hidden);
  for (index r = 0; r < rows; ++r) {
    double squares = 0, along = 0; // along: what dy * gain has in the direction of x
    for (index i = 0; i < hidden; ++i) {
      squares += x[r * hidden + i] * x[r * hidden + i];
      along += dy[r * hidden + i] * gain[i] * x[r * hidden + i];
    }
    const double inverse = 1.0 / std::sqrt(squares / n + epsilon);
    for (index i = 0; i < hidden; ++i) {
      const index at = r * hidden + i;
      g.dgain[i] += dy[at] * x[at] * inverse;
      g.dx[at] = inverse * (dy[at] * gain[i] - x[at] * along * inverse * inverse / n);
    }
  }
  return g;
}

// ---- Rotary positions: in every head, element i turns with element i + head_dim / 2 (the "rotate half"
// layout)
//      by the angle position * theta^(-2 i / head_dim)

enum class turn { forward, back };

/// `turn::back` is the inverse, and, as a rotation is orthogonal, the backward.  x (rows, heads * head_dim)
inline vec rope(vec x, const std::vector<index>& position, index heads, index head_dim, double theta,
                turn direction = turn::forward) {
  const index rows = static_cast<index>(position.size());
  require_size(x, rows * heads * head_dim, "x");
  require(head_dim % 2 == 0, "rotary positions need an even head_dim");
  const index half = head_dim / 2;
  for (index r = 0; r < rows; ++r)
    for (index h = 0; h < heads; ++h)
      for (index i = 0; i < half; ++i) {
        const double frequency =
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        const double angle = static_cast<double>(position[r]) * frequency;
        const double c = std::cos(angle), s = direction == turn::forward ? std::sin(angle) : -std::sin(angle);
        double& a = x[(r * heads + h) * head_dim + i];
        double& b = x[(r * heads + h) * head_dim + i + half];
        const double a_before = a, b_before = b;
        a = a_before * c - b_before * s;
        b = b_before * c + a_before * s;
      }
  return x; // (rows, heads * head_dim)
}

// ---- Attention: causal, softmax(q k^T / sqrt(head_dim)) v; query head h reads key-value head h / (heads /
// kv_heads)

struct attention_shape {
  index sequences = 1, length = 1; // rows = sequences * length, sequence by sequence
  index heads = 1, kv_heads = 1, head_dim = 1;

  index rows() const { return sequences * length; }
  index kv_head_of(index head) const { return head / (heads / kv_heads); }
};

namespace detail {

inline void check(const attention_shape& s, const vec& q, const vec& k, const vec& v) {
  require(s.heads % s.kv_heads == 0, "kv_heads must divide heads");
  require_size(q, s.rows() * s.heads * s.head_dim, "q");
  require_size(k, s.rows() * s.kv_heads * s.head_dim, "k");
  require_size(v, s.rows() * s.kv_heads * s.head_dim, "v");
}

inline const double* head(const vec& x, index row, index heads, index h, index head_dim) {
  return x.data() + (row * heads + h) * head_dim;
}

inline double* head(vec& x, index row, index heads, index h, index head_dim) {
  return x.data() + (row * heads + h) * head_dim;
}

/// What query row `t` of a sequence gives to its rows 0..t: their softmax weights.
inline vec attention_weights(const attention_shape& s, const vec& q, const vec& k, index sequence, index h,
                             index t) {
  const index first = sequence * s.length;
  const double* query = head(q, first + t, s.heads, h, s.head_dim);
  vec w = zeros(t + 1);
  for (index u = 0; u <= t; ++u) {
    const double* key = head(k, first + u, s.kv_heads, s.kv_head_of(h), s.head_dim);
    double dot = 0;
    for (index i = 0; i < s.head_dim; ++i) dot += query[i] * key[i];
    w[u] = dot / std::sqrt(static_cast<double>(s.head_dim));
  }
  const double largest = *std::max_element(w.begin(), w.end());
  double sum = 0;
  for (double& value : w) sum += value = std::exp(value - largest);
  for (double& value : w) value /= sum;
  return w;
}

} // namespace detail

/// q (rows, heads * head_dim), k and v (rows, kv_heads * head_dim), q and k already rotated.
inline vec attention(const attention_shape& s, const vec& q, const vec& k, const vec& v) {
  detail::check(s, q, k, v);
  vec out = zeros(s.rows() * s.heads * s.head_dim);
  for (index b = 0; b < s.sequences; ++b)
    for (index h = 0; h < s.heads; ++h)
      for (index t = 0; t < s.length; ++t) {
        const vec w = detail::attention_weights(s, q, k, b, h, t);
        double* o = detail::head(out, b * s.length + t, s.heads, h, s.head_dim);
        for (index u = 0; u <= t; ++u) {
          const double* value = detail::head(v, b * s.length + u, s.kv_heads, s.kv_head_of(h), s.head_dim);
          for (index i = 0; i < s.head_dim; ++i) o[i] += w[u] * value[i];
        }
      }
  return out; // (rows, heads * head_dim)
}

struct attention_gradients {
  vec dq;     // (rows, heads * head_dim)
  vec dk, dv; // (rows, kv_heads * head_dim)
};

inline attention_gradients attention_backward(const attention_shape& s, const vec& dout, const vec& q,
                                              const vec& k, const vec& v) {
  detail::check(s, q, k, v);
  require_size(dout, s.rows() * s.heads * s.head_dim, "dout");
  attention_gradients g{zeros(s.rows() * s.heads * s.head_dim), zeros(s.rows() * s.kv_heads * s.head_dim),
                        zeros(s.rows() * s.kv_heads * s.head_dim)};
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  for (index b = 0; b < s.sequences; ++b)
    for (index h = 0; h < s.heads; ++h)
      for (index t = 0; t < s.length; ++t) {
        const index row = b * s.length + t, kv = s.kv_head_of(h);
        const vec w = detail::attention_weights(s, q, k, b, h, t);
        const double* d = detail::head(dout, row, s.heads, h, s.head_dim);
        vec dw = zeros(t + 1);
        double mean = 0; // sum of w dw, which the softmax takes off every dw
        for (index u = 0; u <= t; ++u) {
          const double* value = detail::head(v, b * s.length + u, s.kv_heads, kv, s.head_dim);
          double* dvalue = detail::head(g.dv, b * s.length + u, s.kv_heads, kv, s.head_dim);
          for (index i = 0; i < s.head_dim; ++i) {
            dw[u] += d[i] * value[i];
            dvalue[i] += w[u] * d[i];
          }
          mean += w[u] * dw[u];
        }
        const double* query = detail::head(q, row, s.heads, h, s.head_dim);
        double* dquery = detail::head(g.dq, row, s.heads, h, s.head_dim);
        for (index u = 0; u <= t; ++u) {
          const double dscore = w[u] * (dw[u] - mean) * scale;
          const double* key = detail::head(k, b * s.length + u, s.kv_heads, kv, s.head_dim);
          double* dkey = detail::head(g.dk, b * s.length + u, s.kv_heads, kv, s.head_dim);
          for (index i = 0; i < s.head_dim; ++i) {
            dquery[i] += dscore * key[i];
            dkey[i] += dscore * query[i];
          }
        }
      }
  return g;
}

// ---- SwiGLU: y = (silu(x w1^T) * (x w3^T)) w2^T, silu(a) = a / (1 + e^-a)

inline vec swiglu(const vec& x, const vec& w1, const vec& w2, const vec& w3, index rows, index hidden,
                  index intermediate) {
  const vec a = linear(x, w1, rows, hidden, intermediate); // w1 and w3 (intermediate, hidden)
  vec u = linear(x, w3, rows, hidden, intermediate);
  for (std::size_t i = 0; i < u.size(); ++i) u[i] *= a[i] / (1.0 + std::exp(-a[i]));
  return linear(u, w2, rows, intermediate, hidden); // w2 (hidden, intermediate) -> (rows, hidden)
}

struct swiglu_gradients {
  vec dx;  // (rows, hidden)
  vec dw1; // (intermediate, hidden)
  vec dw2; // (hidden, intermediate)
  vec dw3; // (intermediate, hidden)
};

inline swiglu_gradients swiglu_backward(const vec& dy, const vec& x, const vec& w1, const vec& w2,
                                        const vec& w3, index rows, index hidden, index intermediate) {
  const index inner = rows * intermediate, weights = intermediate * hidden;
  swiglu_gradients g{zeros(rows * hidden), zeros(weights), zeros(weights), zeros(weights)};
  const vec a = linear(x, w1, rows, hidden, intermediate);
  const vec b = linear(x, w3, rows, hidden, intermediate);
  vec u = zeros(inner), du = zeros(inner), da = zeros(inner), db = zeros(inner);
  for (index i = 0; i < inner; ++i) u[i] = a[i] / (1.0 + std::exp(-a[i])) * b[i];
  add_linear_backward(dy, u, w2, rows, intermediate, hidden, du, g.dw2);
  for (index i = 0; i < inner; ++i) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-a[i]));
    da[i] = du[i] * b[i] * sigmoid * (1.0 + a[i] * (1.0 - sigmoid));
    db[i] = du[i] * a[i] * sigmoid;
  }
  add_linear_backward(da, x, w1, rows, hidden, intermediate, g.dx, g.dw1);
  add_linear_backward(db, x, w3, rows, hidden, intermediate, g.dx, g.dw3);
  return g;
}

// ---- Softmax cross-entropy per row; a label outside [0, vocabulary) makes its row count as nothing

inline bool counts(index label, index vocabulary) { return label >= 0 && label < vocabulary; }

inline vec cross_entropy(const vec& logits, const std::vector<index>& label, index vocabulary) {
  const index rows = static_cast<index>(label.size());
  require_size(logits, rows * vocabulary, "logits"); // (rows, vocabulary)
  vec loss = zeros(rows);
  for (index r = 0; r < rows; ++r) {
    if (!counts(label[r], vocabulary)) continue;
    const double* z = logits.data() + r * vocabulary;
    const double largest = *std::max_element(z, z + vocabulary);
    double sum = 0;
    for (index i = 0; i < vocabulary; ++i) sum += std::exp(z[i] - largest);
    loss[r] = std::log(sum) + largest - z[label[r]];
  }
  return loss; // (rows)
}

/// upstream: the gradient of every row's loss, 1 / rows for the mean.
inline vec cross_entropy_backward(const vec& upstream, const vec& logits, const std::vector<index>& label,
                                  index vocabulary) {
  const index rows = static_cast<index>(label.size());
  require_size(upstream, rows, "upstream");
  require_size(logits, rows * vocabulary, "logits");
  vec dlogits = zeros(rows * vocabulary);
  for (index r = 0; r < rows; ++r) {
    if (!counts(label[r], vocabulary)) continue;
    const double* z = logits.data() + r * vocabulary;
    const double largest = *std::max_element(z, z + vocabulary);
    double sum = 0;
    for (index i = 0; i < vocabulary; ++i) sum += std::exp(z[i] - largest);
    for (index i = 0; i < vocabulary; ++i)
      dlogits[r * vocabulary + i] =
          upstream[r] * (std::exp(z[i] - largest) / sum - (i == label[r] ? 1.0 : 0.0));
  }
  return dlogits; // (rows, vocabulary)
}

} // namespace reference
