// SPDX-License-Identifier: Apache-2.0
//
// What the communicator's contract suite needs on a rank: device memory that is filled from and read back to
// the host through the seam, and a check that ends the rank with a sentence instead of asserting on a thread.
#pragma once

#include <plateau/access.hpp>
#include <plateau/resource.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace contract {

namespace pl = plateau;

inline void require(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error("contract broken: " + std::string(sentence));
}

// n elements on the device with a pinned mirror.
template <class T, class Backend> class mirrored {
 public:
  mirrored(Backend& backend, pl::index_t n)
      : backend_(backend), device_(backend.device(), n, pl::tag::other),
        host_(backend.pinned(), n, pl::tag::other) {}

  template <class ValueOf> void put(typename Backend::stream& s, ValueOf value_of) {
    for (pl::index_t i = 0; i < host_.size(); ++i) host_.data()[i] = value_of(i);
    backend_.copy(s, in(host_.all()), out(device_.all()));
  }
  // Waits for the stream.
  const T* get(typename Backend::stream& s) {
    backend_.copy(s, in(device_.all()), out(host_.all()));
    backend_.wait(backend_.record(s));
    return host_.data();
  }
  pl::view<T> all() const { return device_.all(); }
  pl::view<T> sub(pl::index_t first, pl::index_t n) const { return device_.all().sub(first, n); }

 private:
  Backend& backend_;
  pl::device_buffer<T, Backend> device_;
  pl::pinned_buffer<T, Backend> host_;
};

} // namespace contract
