// SPDX-License-Identifier: Apache-2.0
//
// What has been issued to a stream and not begun: numbers of instructions, first in, first out. It grows to
// the most that the host ever was ahead, and takes no memory after that.
#pragma once

#include <plateau/config.hpp>

#include <vector>

namespace plateau::inline v0::dry {

class command_queue {
 public:
  bool empty() const { return first_ == last_; }
  std::size_t size() const { return last_ - first_; }
  // The i-th from the front.
  std::uint32_t operator[](std::size_t i) const { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  void push(std::uint32_t number) {
    if (size() == ring_.size()) grow();
    ring_[last_++ & (ring_.size() - 1)] = number;
  }
  std::uint32_t pop() { return ring_[first_++ & (ring_.size() - 1)]; }

 private:
  void grow() {
    std::vector<std::uint32_t> larger(ring_.empty() ? 64 : 2 * ring_.size());
    const std::size_t n = size();
    for (std::size_t i = 0; i < n; ++i) larger[i] = (*this)[i];
    ring_ = std::move(larger);
    first_ = 0;
    last_ = n;
  }

  std::vector<std::uint32_t> ring_; // a power of two
  std::size_t first_ = 0, last_ = 0;
};

} // namespace plateau::inline v0::dry
