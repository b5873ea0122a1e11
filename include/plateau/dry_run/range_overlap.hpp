// SPDX-License-Identifier: Apache-2.0
//
// Which byte ranges have bytes in common, exactly: column blocks of one matrix interleave in memory without
// sharing a byte. Ranges are first brought to a normal form, in which what is contiguous has one row, rows
// are the closer and blocks the wider step. Ranges of the same pitch are compared in constant time, others
// row by row.
#pragma once

#include <plateau/dry_run/access_range.hpp>

#include <algorithm>
#include <utility>

namespace plateau::inline v0::dry {

// The same bytes with: pitch > width where there are rows; blocks only where there are rows, and then
// stride >= pitch.
inline access_range normal(access_range r) {
  if (r.empty()) {
    const auto address = r.address;
    const auto mode = r.mode;
    r = {};
    r.address = address;
    r.mode = mode;
    return r;
  }
  if (r.pitch == 0) r.rows = 1;
  if (r.stride == 0) r.count = 1;
  const auto blocks_inside = [&] {
    std::swap(r.rows, r.count);
    std::swap(r.pitch, r.stride);
  };
  if (r.count > 1 && (r.rows == 1 || r.stride < r.pitch)) blocks_inside();
  for (int level = 0; level < 2; ++level) {
    if (r.rows > 1 && r.pitch <= r.width) {
      r.width += static_cast<std::size_t>(r.rows - 1) * r.pitch;
      r.rows = 1;
      blocks_inside();
    }
  }
  if (r.count > 1 && r.stride % r.pitch == 0 && r.stride / r.pitch <= static_cast<std::size_t>(r.rows)) {
    r.rows += (r.count - 1) * static_cast<index_t>(r.stride / r.pitch);
    r.count = 1;
  }
  if (r.rows == 1) r.pitch = 0;
  if (r.count == 1) r.stride = 0;
  return r;
}

// All that follows takes ranges in normal form that are not empty.

inline std::uintptr_t end_of(const access_range& r) { return r.address + r.extent(); }

inline access_range block_of(access_range r, index_t i) {
  r.address += static_cast<std::size_t>(i) * r.stride;
  r.count = 1;
  r.stride = 0;
  return r;
}
// Rows [first, last) of a range of one block.
inline access_range rows_of(access_range r, index_t first, index_t last) {
  r.address += static_cast<std::size_t>(first) * r.pitch;
  r.rows = last - first;
  if (r.rows == 1) r.pitch = 0;
  return r;
}
inline access_range row_of(const access_range& r, index_t i) { return rows_of(r, i, i + 1); }

namespace detail {
// The first of n pieces of `width` bytes, `step` apart from `address`, that ends after `lo`; n if none does.
inline index_t first_ending_after(std::uintptr_t lo, std::uintptr_t address, std::size_t width,
                                  std::size_t step, index_t n) {
  if (address + width > lo) return 0;
  if (n == 1) return 1;
  const auto i = static_cast<index_t>((lo - address - width) / step) + 1;
  return std::min(i, n);
}
constexpr index_t floor_divided(index_t a, index_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Shifts k in [lo, hi] of steps of `step` for which b, of extent eb, may meet a, of extent ea, when they
// begin d bytes apart: -eb < d + k * step < ea.
inline std::pair<index_t, index_t> meeting_shifts(index_t d, std::size_t ea, std::size_t eb, std::size_t step,
                                                  index_t na, index_t nb) {
  const auto s = static_cast<index_t>(step);
  const auto lo = floor_divided(-static_cast<index_t>(eb) - d, s) + 1;
  const auto hi = floor_divided(static_cast<index_t>(ea) - d - 1, s);
  return {std::max(lo, 1 - na), std::min(hi, nb - 1)};
}
} // namespace detail

// Whether r has a byte in [lo, hi).
inline bool meets(const access_range& r, std::uintptr_t lo, std::uintptr_t hi) {
  if (r.count > 1) {
    const auto size = block_of(r, 0).extent();
    for (auto i = detail::first_ending_after(lo, r.address, size, r.stride, r.count); i < r.count; ++i) {
      const auto block = block_of(r, i);
      if (block.address >= hi) return false;
      if (meets(block, lo, hi)) return true;
    }
    return false;
  }
  const auto i = detail::first_ending_after(lo, r.address, r.width, r.pitch, r.rows);
  return i < r.rows && r.address + static_cast<std::size_t>(i) * r.pitch < hi;
}

// Whether a and b have a byte in common.
inline bool overlap(const access_range& a, const access_range& b) {
  if (end_of(a) <= b.address || end_of(b) <= a.address) return false;
  if (a.contiguous()) return meets(b, a.address, end_of(a));
  if (b.contiguous()) return meets(a, b.address, end_of(b));
  const auto d = static_cast<index_t>(b.address - a.address);
  if (a.count > 1 && b.count > 1 && a.stride == b.stride) {
    const auto x = block_of(a, 0);
    auto y = block_of(b, 0);
    const auto [lo, hi] = detail::meeting_shifts(d, x.extent(), y.extent(), a.stride, a.count, b.count);
    for (auto k = lo; k <= hi; ++k) {
      y.address = b.address + static_cast<std::uintptr_t>(k) * a.stride; // wraps to what is below, for k < 0
      if (overlap(x, y)) return true;
    }
    return false;
  }
  if (b.count > a.count) return overlap(b, a);
  if (a.count > 1) {
    const auto size = block_of(a, 0).extent();
    for (auto i = detail::first_ending_after(b.address, a.address, size, a.stride, a.count); i < a.count;
         ++i) {
      const auto block = block_of(a, i);
      if (block.address >= end_of(b)) return false;
      if (overlap(block, b)) return true;
    }
    return false;
  }
  if (a.pitch == b.pitch) {
    const auto [lo, hi] = detail::meeting_shifts(d, a.width, b.width, a.pitch, a.rows, b.rows);
    return lo <= hi;
  }
  const auto& few = a.rows <= b.rows ? a : b;
  const auto& many = a.rows <= b.rows ? b : a;
  for (auto i = detail::first_ending_after(many.address, few.address, few.width, few.pitch, few.rows);
       i < few.rows; ++i) {
    const auto row = row_of(few, i);
    if (row.address >= end_of(many)) return false;
    if (meets(many, row.address, row.address + row.width)) return true;
  }
  return false;
}

// Whether every byte of b is one of a's. May be false where it takes several rows of a to cover one of b.
inline bool covers(const access_range& a, const access_range& b) {
  if (b.address < a.address || end_of(b) > end_of(a)) return false;
  if (a.contiguous()) return true;
  const auto d = b.address - a.address;
  if (a.count > 1) {
    const auto i = std::min(static_cast<index_t>(d / a.stride), a.count - 1);
    const auto block = block_of(a, i);
    if (b.count > 1 && b.stride == a.stride) return i + b.count <= a.count && covers(block, block_of(b, 0));
    return covers(block, b);
  }
  if (b.count > 1) { // each block of b within a row of a
    auto hulls = b;
    hulls.width = block_of(b, 0).extent();
    hulls.rows = b.count;
    hulls.pitch = b.stride;
    hulls.count = 1;
    hulls.stride = 0;
    hulls = normal(hulls);
    return covers(a, hulls);
  }
  const auto i = static_cast<index_t>(d / a.pitch);
  if (d - static_cast<std::size_t>(i) * a.pitch + b.width > a.width) return false;
  return b.contiguous() || b.pitch == a.pitch; // no rows too many: b ends where a does, or before
}

// Of b's rows, numbers [first, second) that lie within rows of a. May be none though some do.
inline std::pair<index_t, index_t> covered_rows(const access_range& a, const access_range& b) {
  if (a.count > 1 || b.count > 1 || b.rows == 1) return {0, 0};
  const auto pitch = static_cast<index_t>(b.pitch);
  const auto d = static_cast<index_t>(b.address - a.address);
  if (a.contiguous()) {
    const auto room = static_cast<index_t>(a.width) - d - static_cast<index_t>(b.width);
    const auto first = d >= 0 ? 0 : (pitch - 1 - d) / pitch;
    return {first, room < 0 ? 0 : std::min(b.rows, room / pitch + 1)};
  }
  const auto down = detail::floor_divided(d, pitch);
  if (a.pitch != b.pitch || static_cast<std::size_t>(d - down * pitch) + b.width > a.width) return {0, 0};
  return {std::max<index_t>(0, -down), std::min(b.rows, a.rows - down)};
}

// Calls f with ranges of one block that together are r.
template <class F> void each_block(access_range r, F f) {
  if (r.rows < r.count) { // the fewer, the better
    std::swap(r.rows, r.count);
    std::swap(r.pitch, r.stride);
  }
  for (index_t i = 0; i < r.count; ++i) f(block_of(r, i));
}

} // namespace plateau::inline v0::dry
