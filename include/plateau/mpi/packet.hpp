// SPDX-License-Identifier: Apache-2.0
//
// The small messages by which processes agree: numbers and texts one after the other. All processes of a job
// run the same library on machines of one kind, so numbers go as they lie in memory.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace plateau::inline v0::mpi {

using packet = std::vector<unsigned char>;

class packet_writer {
 public:
  explicit packet_writer(packet& to) : to_(to) { to_.clear(); }

  void number(std::uint64_t n) { bytes(&n, sizeof n); }
  void text(std::string_view t) {
    number(t.size());
    bytes(t.data(), t.size());
  }
  template <class T> void numbers(std::span<const T> n) {
    static_assert(sizeof(T) == 8);
    bytes(n.data(), n.size_bytes());
  }

 private:
  void bytes(const void* p, std::size_t n) {
    const auto* from = static_cast<const unsigned char*>(p);
    to_.insert(to_.end(), from, from + n);
  }
  packet& to_;
};

// Throws backend_error where the packet is shorter than what is read.
class packet_reader {
 public:
  explicit packet_reader(const packet& from, std::size_t at = 0) : from_(from), at_(at) {}

  std::uint64_t number() {
    std::uint64_t n = 0;
    std::memcpy(&n, take(sizeof n), sizeof n);
    return n;
  }
  std::string_view text() {
    const std::size_t n = number();
    return {reinterpret_cast<const char*>(take(n)), n};
  }
  // Appends n numbers.
  template <class T> void numbers(std::size_t n, std::vector<T>& to) {
    static_assert(sizeof(T) == 8);
    if (n == 0) return;
    const unsigned char* from = take(n * sizeof(T));
    const std::size_t before = to.size();
    to.resize(before + n);
    std::memcpy(to.data() + before, from, n * sizeof(T));
  }
  std::size_t at() const { return at_; }

 private:
  const unsigned char* take(std::size_t n) {
    if (n > from_.size() - at_)
      throw backend_error("plateau: a message of another process ends early: do all processes run the same "
                          "version of the program?");
    const unsigned char* p = from_.data() + at_;
    at_ += n;
    return p;
  }
  const packet& from_;
  std::size_t at_;
};

} // namespace plateau::inline v0::mpi
