// SPDX-License-Identifier: Apache-2.0
//
// How a long list of elements is cut into buckets: pure arithmetic on integers, the same on every rank. The
// elements are those of tensors, one after the other. A bucket is cut anywhere, for updates that look at one
// element at a time: a large tensor is split, and small ones share; or it holds whole tensors, for updates
// that need all of a matrix.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Elements [first, first + elements) of the list, never none; they are of the tensors [first_tensor,
// last_tensor), of which the first and the last may be there in part. A plan that knows no tensors has one.
struct bucket {
  index_t index = 0; // its number, from 0
  index_t first = 0, elements = 0;
  index_t first_tensor = 0, last_tensor = 0;
};

// What a bucket has of one tensor: elements [first, first + elements) of it, at `at` in the bucket.
struct tensor_part {
  index_t first = 0, at = 0, elements = 0;
};

// Allocates only where it is made. Copyable.
class bucket_plan {
 public:
  // Nothing: no bucket.
  bucket_plan() = default;

  // Cut anywhere, into buckets of bucket_elements and a last one with what is left. Throws config_error for
  // fewer than 0 elements or fewer than 1 in a bucket.
  static bucket_plan elementwise(index_t total_elements, index_t bucket_elements) {
    return elementwise(std::span<const index_t>(&total_elements, 1), bucket_elements);
  }
  // The same, where the elements are those of tensors: a bucket knows which, see part_of.
  static bucket_plan elementwise(std::span<const index_t> tensor_elements, index_t bucket_elements) {
    bucket_plan p(tensor_elements, bucket_elements);
    p.count_ = p.elements() / bucket_elements + (p.elements() % bucket_elements != 0 ? 1 : 0);
    return p;
  }
  // Whole tensors, in their order, as many in a bucket as bucket_elements hold. Throws config_error, with the
  // number and the size of the largest, when a tensor has more.
  static bucket_plan whole_tensors(std::span<const index_t> tensor_elements, index_t bucket_elements) {
    bucket_plan p(tensor_elements, bucket_elements);
    const auto largest = std::max_element(tensor_elements.begin(), tensor_elements.end());
    if (largest != tensor_elements.end() && *largest > bucket_elements)
      throw config_error("plateau: bucket_plan: tensor " + std::to_string(largest - tensor_elements.begin()) +
                         " has " + std::to_string(*largest) +
                         " elements, the most of all, but a bucket holds " + std::to_string(bucket_elements) +
                         ": whole tensors need buckets of at least the largest");
    p.bounds_.push_back(0);
    index_t held = 0;
    for (index_t t = 0; t < p.tensors(); ++t) {
      if (held > bucket_elements - p.elements_of(t)) p.bounds_.push_back(t), held = 0;
      held += p.elements_of(t);
    }
    if (held != 0) p.bounds_.push_back(p.tensors());
    p.count_ = static_cast<index_t>(p.bounds_.size()) - 1;
    // Tensors without elements at the end belong to the last bucket.
    if (p.count_ != 0) p.bounds_.back() = p.tensors();
    return p;
  }

  index_t buckets() const { return count_; }
  index_t elements() const { return firsts_.back(); } // of all buckets
  index_t tensors() const { return static_cast<index_t>(firsts_.size()) - 1; }
  // Of a tensor: where it begins in the list, and how long it is.
  index_t first_of(index_t tensor) const { return firsts_[static_cast<std::size_t>(tensor)]; }
  index_t elements_of(index_t tensor) const { return first_of(tensor + 1) - first_of(tensor); }
  // The most that a bucket has; 0 where there is none.
  index_t largest() const {
    index_t most = 0;
    if (bounds_.empty()) return std::min(bucket_elements_, elements());
    for (index_t i = 0; i < count_; ++i) most = std::max(most, at(i).elements);
    return most;
  }

  // Bucket i of [0, buckets()).
  bucket at(index_t i) const {
    bucket b{i, 0, 0, 0, 0};
    if (!bounds_.empty()) {
      b.first_tensor = bounds_[static_cast<std::size_t>(i)];
      b.last_tensor = bounds_[static_cast<std::size_t>(i) + 1];
      b.first = first_of(b.first_tensor);
      b.elements = first_of(b.last_tensor) - b.first;
      return b;
    }
    b.first = i * bucket_elements_;
    b.elements = std::min(bucket_elements_, elements() - b.first);
    b.first_tensor = tensor_at(b.first);
    b.last_tensor = tensor_at(b.first + b.elements - 1) + 1;
    return b;
  }
  // What bucket b has of a tensor; 0 elements of one that is not in it.
  tensor_part part_of(const bucket& b, index_t tensor) const {
    const index_t from = std::max(b.first, first_of(tensor));
    const index_t to = std::min(b.first + b.elements, first_of(tensor + 1));
    if (to <= from) return {};
    return {from - first_of(tensor), from - b.first, to - from};
  }

 private:
  bucket_plan(std::span<const index_t> tensor_elements, index_t bucket_elements)
      : bucket_elements_(bucket_elements) {
    if (bucket_elements < 1)
      throw config_error("plateau: bucket_plan: a bucket must hold at least 1 element, got " +
                         std::to_string(bucket_elements));
    firsts_.reserve(tensor_elements.size() + 1);
    for (const index_t n : tensor_elements) {
      if (n < 0 || n > std::numeric_limits<index_t>::max() - elements())
        throw config_error("plateau: bucket_plan: tensor " + std::to_string(tensors()) + " cannot have " +
                           std::to_string(n) + " elements after " + std::to_string(elements()) +
                           " of those before it");
      firsts_.push_back(elements() + n);
    }
  }
  // The tensor that has element e of the list.
  index_t tensor_at(index_t e) const {
    return std::upper_bound(firsts_.begin(), firsts_.end(), e) - firsts_.begin() - 1;
  }

  index_t bucket_elements_ = 1, count_ = 0;
  std::vector<index_t> firsts_{0}; // (tensors + 1)
  std::vector<index_t> bounds_;    // whole tensors: the first of each bucket, and the end
};

} // namespace plateau::inline v0
