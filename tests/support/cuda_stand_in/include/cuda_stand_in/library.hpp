// SPDX-License-Identifier: Apache-2.0
//
// What the stand-ins of libraries share: device memory that an operation touches, checked when it is asked
// for and again when it runs, and scratch that a library scribbles in, as the real ones do.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/copies.hpp>
#include <cuda_stand_in/memory.hpp>

#include <algorithm>
#include <cstring>
#include <string>

namespace cuda_stand_in {

// Bytes that an operation reads or writes. The device reaches its own memory and pinned memory.
struct span_of_bytes {
  place where;
  std::size_t bytes = 0;
  char* real() const { return where.real; }
  bool reachable() const {
    return bytes == 0 || (where.kind != memory_kind::pageable && reaches(where, bytes));
  }
  bool still_there() const { return bytes == 0 || cuda_stand_in::still_there(where, bytes); }
  bool overlaps(const span_of_bytes& other) const {
    return real() < other.real() + other.bytes && other.real() < real() + bytes && bytes != 0 &&
           other.bytes != 0;
  }
};
inline span_of_bytes bytes_at(const void* p, std::size_t bytes) { return {locate(p), bytes}; }

// Ends the device where memory is not, or no longer, what an operation may touch. On a GPU that is what comes
// of it at best.
inline bool all_there(int device, const char* what, std::initializer_list<span_of_bytes> all) {
  for (const span_of_bytes& s : all)
    if (!s.reachable() || !s.still_there()) {
      fail_device(device, cudaErrorIllegalAddress,
                  std::string(what) + " touches " + std::to_string(s.bytes) +
                      " bytes that are not all in one allocation of the device");
      return false;
    }
  return true;
}

// The edges of a library's scratch, which show who else uses it.
inline void scribble(const span_of_bytes& scratch) {
  const std::size_t edge = std::min<std::size_t>(scratch.bytes, 4096);
  if (edge == 0) return;
  std::memset(scratch.real(), 0xc5, edge);
  std::memset(scratch.real() + scratch.bytes - edge, 0xc5, edge);
}

// Memory without operator new, which tests count.
template <class T> class plain_array {
 public:
  explicit plain_array(std::size_t n)
      : p_(static_cast<T*>(std::malloc(std::max<std::size_t>(n, 1) * sizeof(T)))) {
    if (p_ == nullptr) std::abort();
  }
  plain_array(const plain_array&) = delete;
  plain_array& operator=(const plain_array&) = delete;
  ~plain_array() { std::free(p_); }
  T* data() const { return p_; }
  T& operator[](std::size_t i) const { return p_[i]; }

 private:
  T* p_;
};

} // namespace cuda_stand_in
