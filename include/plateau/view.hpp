// SPDX-License-Identifier: Apache-2.0
//
// Views: a pointer and extents, with the memory space in the type, passed to kernels by value. `view` is a
// row of elements, `tile` a matrix with a row pitch, `tile_batch` equally spaced matrices. They own nothing
// and check only what a host call can check for free: that a sub-view lies inside its view. An empty view may
// hold a null pointer.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <string>
#include <type_traits>

namespace plateau::inline v0 {

// Memory that kernels of a backend work on, and memory of the host that its copies reach: pinned, where that
// matters.
struct device_space {
  static constexpr const char* name = "device";
};
struct host_space {
  static constexpr const char* name = "host";
};

namespace detail {
[[noreturn]] inline void bad_sub_view(const char* what, index_t first, index_t count, index_t extent) {
  throw config_error(std::string("plateau: ") + what + ": [" + std::to_string(first) + ", " +
                     std::to_string(first) + " + " + std::to_string(count) + ") lies outside an extent of " +
                     std::to_string(extent));
}
// Written without first + count, which may overflow.
constexpr bool inside(index_t first, index_t count, index_t extent) {
  return first >= 0 && count >= 0 && first <= extent && count <= extent - first;
}
} // namespace detail

// Each converts to the same of const. Those conversions are templates because nvcc warns of a plain one, even
// if it is constrained, where the elements are const already.

// n elements, one after the other.
template <class T, class Space = device_space> struct view {
  using element_type = T;
  using space = Space;

  T* p = nullptr;
  index_t n = 0;

  PLATEAU_HD constexpr T& operator[](index_t i) const { return p[i]; }
  PLATEAU_HD constexpr T* data() const { return p; }
  PLATEAU_HD constexpr index_t size() const { return n; }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(n) * sizeof(T); }

  // The `count` elements from `first` on. Throws config_error when they are not all inside.
  constexpr view sub(index_t first, index_t count) const {
    if (!detail::inside(first, count, n)) detail::bad_sub_view("view::sub", first, count, n);
    return {p == nullptr ? nullptr : p + first, count};
  }
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_const_v<T>)
  PLATEAU_HD constexpr operator view<U, Space>() const { return {p, n}; }
};

// rows x cols elements; consecutive rows are `ld` elements apart, those of one row are adjacent.
template <class T, class Space = device_space> struct tile {
  using element_type = T;
  using space = Space;

  T* p = nullptr;
  index_t rows = 0, cols = 0, ld = 0;

  PLATEAU_HD constexpr T* row(index_t i) const { return p + i * ld; }
  PLATEAU_HD constexpr T& operator()(index_t i, index_t j) const { return p[i * ld + j]; }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * sizeof(T); }
  PLATEAU_HD constexpr bool contiguous() const { return ld == cols || rows <= 1 || cols == 0; }

  // The rows [first, first + count). Throws config_error when they are not all inside.
  constexpr tile row_block(index_t first, index_t count) const {
    if (!detail::inside(first, count, rows)) detail::bad_sub_view("tile::row_block", first, count, rows);
    return {p == nullptr ? nullptr : p + first * ld, count, cols, ld};
  }
  // The columns [first, first + count). Throws config_error when they are not all inside.
  constexpr tile column_block(index_t first, index_t count) const {
    if (!detail::inside(first, count, cols)) detail::bad_sub_view("tile::column_block", first, count, cols);
    return {p == nullptr ? nullptr : p + first, rows, count, ld};
  }
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_const_v<T>)
  PLATEAU_HD constexpr operator tile<U, Space>() const { return {p, rows, cols, ld}; }
};

// `count` tiles of one shape, `stride` elements apart: the operand of a strided-batched product.
template <class T, class Space = device_space> struct tile_batch {
  using element_type = T;
  using space = Space;

  T* p = nullptr;
  index_t count = 0, stride = 0, rows = 0, cols = 0, ld = 0;

  PLATEAU_HD constexpr tile<T, Space> operator[](index_t i) const { return {p + i * stride, rows, cols, ld}; }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(count * rows * cols) * sizeof(T); }

  constexpr tile_batch row_block(index_t first, index_t n) const {
    if (!detail::inside(first, n, rows)) detail::bad_sub_view("tile_batch::row_block", first, n, rows);
    return {p == nullptr ? nullptr : p + first * ld, count, stride, n, cols, ld};
  }
  constexpr tile_batch column_block(index_t first, index_t n) const {
    if (!detail::inside(first, n, cols)) detail::bad_sub_view("tile_batch::column_block", first, n, cols);
    return {p == nullptr ? nullptr : p + first, count, stride, rows, n, ld};
  }
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_const_v<T>)
  PLATEAU_HD constexpr operator tile_batch<U, Space>() const { return {p, count, stride, rows, cols, ld}; }
};

// nvcc deduces through these; aggregate deduction is not relied upon.
template <class T, class Space>
constexpr tile<T, Space> as_matrix(view<T, Space> v, index_t rows, index_t cols) {
  // Written without rows * cols, which may overflow.
  if (rows < 0 || cols < 0 || (cols > 0 && rows > v.n / cols))
    throw config_error("plateau: as_matrix: " + std::to_string(rows) + " x " + std::to_string(cols) +
                       " elements do not fit into a view of " + std::to_string(v.n));
  return {v.p, rows, cols, cols};
}
template <class T, class Space> constexpr view<T, Space> as_row(tile<T, Space> t) {
  if (!t.contiguous()) throw config_error("plateau: as_row: the rows of this tile are not adjacent");
  return {t.p, t.rows * t.cols};
}

template <class V> inline constexpr bool is_view = false;
template <class T, class S> inline constexpr bool is_view<view<T, S>> = true;
template <class T, class S> inline constexpr bool is_view<tile<T, S>> = true;
template <class T, class S> inline constexpr bool is_view<tile_batch<T, S>> = true;

static_assert(std::is_trivially_copyable_v<view<float>> && std::is_trivially_copyable_v<tile<float>> &&
              std::is_trivially_copyable_v<tile_batch<float>>);

} // namespace plateau::inline v0
