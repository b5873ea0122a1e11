// SPDX-License-Identifier: Apache-2.0
//
// Tensors for tests of kernels: a matrix whose rows have spare elements behind them that nothing may touch,
// random values, and the way to and from the float64 vectors of the reference.
#pragma once

#include "reference/tensor.hpp"

#include <plateau/scalar.hpp>
#include <plateau/view.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace support {

using plateau::index_t;

template <class T> plateau::view<T> all(std::vector<T>& v) {
  return {v.data(), static_cast<index_t>(v.size())};
}
template <class T> plateau::view<const T> all(const std::vector<T>& v) {
  return {v.data(), static_cast<index_t>(v.size())};
}

// float64 values rounded to T.
template <class T> std::vector<T> rounded(const reference::vec& values) {
  std::vector<T> out;
  for (const double v : values) out.push_back(static_cast<T>(static_cast<float>(v)));
  return out;
}
template <class T> reference::vec widened(const std::vector<T>& values) {
  reference::vec out;
  for (const T v : values) out.push_back(static_cast<double>(static_cast<float>(v)));
  return out;
}
template <class T> std::vector<T> random_values(index_t n, std::uint64_t seed, double scale = 1.0) {
  return rounded<T>(reference::normal_source(seed)(n, scale));
}

// rows x cols, every row `spare` elements apart from the next; all bytes start as 0xa5.
template <class T> class matrix {
 public:
  static constexpr index_t spare = 3;

  matrix(index_t rows, index_t cols)
      : rows_(rows), cols_(cols), data_(static_cast<std::size_t>(rows * (cols + spare))) {
    if (!data_.empty()) std::memset(static_cast<void*>(data_.data()), 0xa5, data_.size() * sizeof(T));
  }
  matrix(index_t rows, index_t cols, const std::vector<T>& values) : matrix(rows, cols) {
    for (index_t r = 0; r < rows; ++r)
      for (index_t c = 0; c < cols; ++c) at(r, c) = values[static_cast<std::size_t>(r * cols + c)];
  }

  T& at(index_t r, index_t c) { return data_[static_cast<std::size_t>(r * (cols_ + spare) + c)]; }
  plateau::tile<T> out() { return {data_.data(), rows_, cols_, cols_ + spare}; }
  plateau::tile<const T> in() const { return {data_.data(), rows_, cols_, cols_ + spare}; }

  // The elements without the spare ones.
  std::vector<T> values() const {
    std::vector<T> out;
    for (index_t r = 0; r < rows_; ++r) out.insert(out.end(), in().row(r), in().row(r) + cols_);
    return out;
  }
  bool spare_untouched() const {
    for (index_t r = 0; r < rows_; ++r) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(in().row(r) + cols_);
      for (std::size_t i = 0; i < spare * sizeof(T); ++i)
        if (bytes[i] != 0xa5) return false;
    }
    return true;
  }

 private:
  index_t rows_, cols_;
  std::vector<T> data_;
};

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

} // namespace support
