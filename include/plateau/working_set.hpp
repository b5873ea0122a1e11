// SPDX-License-Identifier: Apache-2.0
//
// A working set is a promise in bytes, line by line, that can be read before anything exists. Operators
// return one from a static function of their shape; sets of phases that never overlap are overlaid (the
// maximum counts), those that live side by side are added. Every line is rounded up to part_alignment, as the
// workspace that honours it does.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>
#include <plateau/tag.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace plateau::inline v0 {

namespace detail {
// What a slab can have at most: its size is an index_t, in whole parts.
inline constexpr std::size_t most_bytes =
    static_cast<std::size_t>(std::numeric_limits<index_t>::max()) / part_alignment * part_alignment;

constexpr std::size_t sum_of_bytes(std::size_t a, std::size_t b) {
  if (a > most_bytes || b > most_bytes - a)
    throw config_error("plateau: together: " + std::to_string(a) + " + " + std::to_string(b) +
                       " bytes overflow");
  return a + b;
}
} // namespace detail

enum class memory_kind : unsigned char { device, pinned_host };

struct memory_line {
  const char* what = ""; // "receive slot", "routing index"
  memory_kind kind = memory_kind::device;
  std::size_t bytes = 0; // as asked; aligned_bytes(bytes) are reserved
};

// The lines of one operator, and its tag. A value type without allocations, usable in constant expressions.
class working_set {
 public:
  static constexpr std::size_t capacity = 64;

  constexpr explicit working_set(tag t) : tag_(t) {}

  // Adds a line. Throws config_error when there are too many, or the bytes overflow.
  constexpr working_set& add(const char* what, memory_kind kind, std::size_t bytes) {
    if (size_ == capacity)
      throw config_error("plateau: working_set: '" + std::string(what) + "' is one line more than the " +
                         std::to_string(capacity) + " that a set holds");
    if (bytes > detail::most_bytes || aligned_bytes(bytes) > detail::most_bytes - this->bytes(kind))
      throw config_error("plateau: working_set: " + std::to_string(bytes) + " bytes of '" + what +
                         "' overflow the sum");
    lines_[size_++] = {what, kind, bytes};
    return *this;
  }
  // Adds the lines of another set, which lives side by side with this one; their tag becomes this one's.
  constexpr working_set& add(const working_set& other) {
    const std::size_t count = other.size_; // before the first is added: a set may take itself in
    for (std::size_t i = 0; i < count; ++i)
      add(other.lines_[i].what, other.lines_[i].kind, other.lines_[i].bytes);
    return *this;
  }
  template <class T> constexpr working_set& device(const char* what, index_t elements) {
    return add(what, memory_kind::device, checked<T>(what, elements));
  }
  template <class T> constexpr working_set& pinned(const char* what, index_t elements) {
    return add(what, memory_kind::pinned_host, checked<T>(what, elements));
  }

  constexpr std::size_t bytes(memory_kind kind) const {
    std::size_t sum = 0;
    for (const memory_line& line : *this) sum += line.kind == kind ? aligned_bytes(line.bytes) : 0;
    return sum;
  }
  constexpr std::size_t device_bytes() const { return bytes(memory_kind::device); }
  constexpr std::size_t pinned_bytes() const { return bytes(memory_kind::pinned_host); }
  constexpr tag purpose() const { return tag_; }
  constexpr const memory_line* begin() const { return lines_.data(); }
  constexpr const memory_line* end() const { return lines_.data() + size_; }

 private:
  template <class T> static constexpr std::size_t checked(const char* what, index_t elements) {
    if (elements < 0 || elements > std::numeric_limits<index_t>::max() / static_cast<index_t>(sizeof(T)))
      throw config_error("plateau: working_set: '" + std::string(what) + "' cannot have " +
                         std::to_string(elements) + " elements");
    return static_cast<std::size_t>(elements) * sizeof(T);
  }
  tag tag_;
  std::array<memory_line, capacity> lines_{};
  std::size_t size_ = 0;
};

// What a workspace must reserve.
struct reservation {
  std::size_t device_bytes = 0;
  std::size_t pinned_bytes = 0;
};
constexpr reservation reserve(const working_set& s) { return {s.device_bytes(), s.pinned_bytes()}; }
constexpr reservation reserve(reservation r) { return r; }

// Phases that never overlap in time share memory: the maximum.
template <class... Sets> constexpr reservation overlay(const Sets&... sets) {
  reservation most;
  ((most = {std::max(most.device_bytes, reserve(sets).device_bytes),
            std::max(most.pinned_bytes, reserve(sets).pinned_bytes)}),
   ...);
  return most;
}
// Phases that are open at the same time: the sum. Throws config_error when it overflows.
template <class... Sets> constexpr reservation together(const Sets&... sets) {
  reservation sum;
  ((sum = {detail::sum_of_bytes(sum.device_bytes, reserve(sets).device_bytes),
           detail::sum_of_bytes(sum.pinned_bytes, reserve(sets).pinned_bytes)}),
   ...);
  return sum;
}

} // namespace plateau::inline v0
