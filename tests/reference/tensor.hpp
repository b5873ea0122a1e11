// SPDX-License-Identifier: Apache-2.0
//
// The ground of the float64 reference: a named tensor is a shape and a plain vector, and a linear map is
// three nested loops. Everything in tests/reference is written to be read beside the formulas and believed,
// not to be fast; it knows nothing of the library, so that the two cannot share a mistake. Standard library
// only. Matrices are dense and row-major. Functions named `add_...` add into their last arguments.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace reference {

using index = std::int64_t;
using vec = std::vector<double>;

struct tensor {
  std::vector<index> shape;
  vec data;
};

using tensors = std::map<std::string, tensor>;

inline index element_count(const std::vector<index>& shape) {
  index count = 1;
  for (const index extent : shape) count *= extent;
  return count;
}

inline tensor zero_tensor(std::vector<index> shape) {
  vec data(static_cast<std::size_t>(element_count(shape)), 0.0);
  return {std::move(shape), std::move(data)};
}

inline tensors zeros_like(const tensors& all) {
  tensors out;
  for (const auto& [name, t] : all) out.emplace(name, zero_tensor(t.shape));
  return out;
}

inline vec zeros(index n) { return vec(static_cast<std::size_t>(n), 0.0); }

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("reference: " + what);
}

inline void require_size(const vec& v, index expected, const char* what) {
  require(static_cast<index>(v.size()) == expected, std::string(what) + " has " + std::to_string(v.size()) +
                                                        " elements, expected " + std::to_string(expected));
}

inline void add_to(vec& a, const vec& b) {
  require_size(b, static_cast<index>(a.size()), "the summand");
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

inline vec sum_of(vec a, const vec& b) {
  add_to(a, b);
  return a;
}

/// y = x w^T, as a linear layer stores its weight.  x (rows, in), w (out, in) -> (rows, out)
inline vec linear(const vec& x, const vec& w, index rows, index in, index out) {
  require_size(x, rows * in, "x");
  require_size(w, out * in, "the weight");
  vec y = zeros(rows * out);
  for (index r = 0; r < rows; ++r)
    for (index o = 0; o < out; ++o) {
      double sum = 0;
      for (index i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
  return y;
}

/// The backward of `linear`: adds dy w to dx and dy^T x to dw.  dy (rows, out), dx (rows, in), dw (out, in)
inline void add_linear_backward(const vec& dy, const vec& x, const vec& w, index rows, index in, index out,
                                vec& dx, vec& dw) {
  require_size(dy, rows * out, "dy");
  require_size(dx, rows * in, "dx");
  require_size(dw, out * in, "dw");
  for (index r = 0; r < rows; ++r)
    for (index o = 0; o < out; ++o)
      for (index i = 0; i < in; ++i) {
        dx[r * in + i] += dy[r * out + o] * w[o * in + i];
        dw[o * in + i] += dy[r * out + o] * x[r * in + i];
      }
}

/// Normal values, the same for a seed everywhere (the standard's normal_distribution is not).
class normal_source {
 public:
  explicit normal_source(std::uint64_t seed) : engine_(seed) {}

  double operator()() {
    const double u = 1.0 - unit(); // (0, 1]
    const double angle = 6.283185307179586 * unit();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
  }

  vec operator()(index n, double scale = 1.0, double mean = 0.0) {
    vec v = zeros(n);
    for (double& value : v) value = mean + scale * (*this)();
    return v;
  }

 private:
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; } // [0, 1)

  std::mt19937_64 engine_;
};

} // namespace reference
