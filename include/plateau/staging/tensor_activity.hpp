// SPDX-License-Identifier: Apache-2.0
//
// Which tensors of a list have a gradient in this step. An expert that no rank has sent a row to has none:
// zeros on every rank, whose sum need not be exchanged. Leaving it out is exact, since the sum of zeros is
// what every rank has already; the update itself is not left out, or it would be another optimizer.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Tensors one after the other in a list of elements. One that was told of no tensors takes every element for
// active. Allocates where it is made and in the first `unite`.
class tensor_activity {
 public:
  tensor_activity() = default;
  // All active. Throws config_error for a tensor of fewer than 0 elements.
  explicit tensor_activity(std::span<const index_t> tensor_elements) {
    firsts_.reserve(tensor_elements.size() + 1);
    firsts_.push_back(0);
    for (const index_t n : tensor_elements) {
      if (n < 0)
        throw config_error("plateau: tensor_activity: tensor " + std::to_string(firsts_.size() - 1) +
                           " cannot have " + std::to_string(n) + " elements");
      firsts_.push_back(firsts_.back() + n);
    }
    active_.assign(words(), 0);
    set_all(true);
  }

  bool knows_tensors() const { return !firsts_.empty(); }
  index_t tensors() const { return knows_tensors() ? static_cast<index_t>(firsts_.size()) - 1 : 0; }
  index_t elements() const { return knows_tensors() ? firsts_.back() : 0; }
  bool active(index_t tensor) const { return (word_of(tensor) >> (tensor % 64) & 1) != 0; }
  void set(index_t tensor, bool on) {
    std::int64_t& word = active_[static_cast<std::size_t>(tensor / 64)];
    const auto bit = static_cast<std::int64_t>(std::uint64_t{1} << (tensor % 64));
    word = on ? word | bit : word & ~bit;
  }
  void set_all(bool on) {
    for (index_t t = 0; t < tensors(); ++t) set(t, on);
  }

  // Collective, one host exchange: what is active on any rank is active on all. All ranks must have as many
  // tensors. `what`: a literal.
  template <class Communicator> void unite(Communicator& comm, const char* what = "tensors with gradients") {
    if (comm.size() == 1 || active_.empty()) return;
    of_all_.resize(active_.size() * static_cast<std::size_t>(comm.size()));
    comm.host_exchange(active_, of_all_, what);
    for (std::size_t i = 0; i < of_all_.size(); ++i) active_[i % active_.size()] |= of_all_[i];
  }

  // f(range) for each longest run of active elements in [first, first + n), in order.
  template <class F> void for_each_run(index_t first, index_t n, F f) const {
    const index_t end = first + n;
    if (n <= 0) return;
    if (!knows_tensors()) return f(first, n);
    index_t t = std::upper_bound(firsts_.begin(), firsts_.end(), first) - firsts_.begin() - 1;
    while (first < end && t < tensors()) {
      while (t < tensors() && !active(t)) ++t;
      if (t == tensors()) return;
      first = std::max(first, firsts_[static_cast<std::size_t>(t)]);
      while (t < tensors() && (active(t) || empty(t))) ++t;
      const index_t last = std::min(end, firsts_[static_cast<std::size_t>(t)]);
      if (first < last) f(first, last - first);
      first = std::max(first, last);
    }
  }
  bool any_in(index_t first, index_t n) const {
    bool any = false;
    for_each_run(first, n, [&](index_t, index_t) { any = true; });
    return any;
  }

 private:
  std::size_t words() const { return (firsts_.size() - 1 + 63) / 64; }
  bool empty(index_t tensor) const {
    return firsts_[static_cast<std::size_t>(tensor)] == firsts_[static_cast<std::size_t>(tensor) + 1];
  }
  std::uint64_t word_of(index_t tensor) const {
    return static_cast<std::uint64_t>(active_[static_cast<std::size_t>(tensor / 64)]);
  }
  std::vector<index_t> firsts_;      // (tensors + 1), or none
  std::vector<std::int64_t> active_; // a bit for each tensor
  std::vector<std::int64_t> of_all_; // the same of all ranks, while they unite
};

} // namespace plateau::inline v0
