// SPDX-License-Identifier: Apache-2.0
//
// The bytes that an operation touches, as the order check sees them: rows of equal width at one pitch, and
// blocks of such rows at one stride. Made from the views of tagged arguments; adjacent rows are joined, so
// that what is contiguous has one row.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace plateau::inline v0::dry {

enum class touch : unsigned char {
  read,       // must have been written
  write,      // every byte
  update,     // read and written
  partial,    // some bytes are written; all count as written afterwards
  accumulate, // integers added in any order: does not conflict with its like
  scratch     // overwritten, contents undefined before and after
};

constexpr touch touch_of(access_mode m) {
  switch (m) {
  case access_mode::read:
    return touch::read;
  case access_mode::write:
    return touch::write;
  case access_mode::update:
    return touch::update;
  case access_mode::partial:
    return touch::partial;
  case access_mode::accumulate:
    break;
  }
  return touch::accumulate;
}
constexpr bool needs_values(touch t) {
  return t == touch::read || t == touch::update || t == touch::accumulate;
}
constexpr bool conflict(touch a, touch b) {
  if (a == touch::read && b == touch::read) return false;
  return !(a == touch::accumulate && b == touch::accumulate);
}

// `count` blocks, `stride` bytes apart, of `rows` rows, `pitch` bytes apart, of `width` bytes each.
struct access_range {
  std::uintptr_t address = 0;
  std::size_t width = 0; // bytes of a row
  index_t rows = 1;
  std::size_t pitch = 0;
  index_t count = 1;
  std::size_t stride = 0;
  touch mode = touch::read;

  bool empty() const { return width == 0 || rows <= 0 || count <= 0; }
  bool contiguous() const { return rows == 1 && count == 1; }
  // Bytes touched, and those from the first to the last.
  std::size_t bytes() const {
    return empty() ? 0 : width * static_cast<std::size_t>(rows) * static_cast<std::size_t>(count);
  }
  std::size_t extent() const {
    if (empty()) return 0;
    return static_cast<std::size_t>(count - 1) * stride + static_cast<std::size_t>(rows - 1) * pitch + width;
  }
};

namespace detail {
// Joins rows that are adjacent, and blocks that continue one another.
constexpr access_range joined(access_range r) {
  if (r.rows > 1 && r.pitch == r.width) {
    r.width *= static_cast<std::size_t>(r.rows);
    r.rows = 1;
  }
  if (r.rows == 1 && r.count > 1) {
    r.rows = r.count;
    r.pitch = r.stride;
    r.count = 1;
    if (r.pitch == r.width) {
      r.width *= static_cast<std::size_t>(r.rows);
      r.rows = 1;
    }
  } else if (r.count > 1 && r.stride == static_cast<std::size_t>(r.rows) * r.pitch) {
    r.rows *= r.count;
    r.count = 1;
  }
  return r;
}
inline std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
} // namespace detail

template <class T, class S> access_range range_of(const view<T, S>& v, touch mode) {
  return {detail::address_of(v.p), v.bytes(), 1, 0, 1, 0, mode};
}
template <class T, class S> access_range range_of(const tile<T, S>& t, touch mode) {
  constexpr auto size = sizeof(T);
  return detail::joined({detail::address_of(t.p), static_cast<std::size_t>(t.cols) * size, t.rows,
                         static_cast<std::size_t>(t.ld) * size, 1, 0, mode});
}
template <class T, class S> access_range range_of(const tile_batch<T, S>& t, touch mode) {
  constexpr auto size = sizeof(T);
  return detail::joined({detail::address_of(t.p), static_cast<std::size_t>(t.cols) * size, t.rows,
                         static_cast<std::size_t>(t.ld) * size, t.count,
                         static_cast<std::size_t>(t.stride) * size, mode});
}
template <class V, access_mode M> access_range range_of(const arg<V, M>& a) {
  return range_of(a.v, touch_of(M));
}

} // namespace plateau::inline v0::dry
