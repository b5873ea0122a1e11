// SPDX-License-Identifier: Apache-2.0
//
// The fields of a staged state: arrays of equal length, of which an update needs the same elements of all at
// a time. Each says where it lives, and which way it goes.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <cstddef>
#include <type_traits>

namespace plateau::inline v0 {

enum class flow : unsigned char {
  in,      // host memory, read by the update
  out,     // host memory, written by it: all elements of a bucket
  inout,   // host memory, read and written
  resident // device memory, where the update reads and writes it; it needs no slot
};
constexpr bool comes_in(flow f) { return f == flow::in || f == flow::inout; }
constexpr bool goes_out(flow f) { return f == flow::out || f == flow::inout; }
constexpr bool is_streamed(flow f) { return f != flow::resident; }

// One field: elements of T, which way they go. A resident field that is only read may be of const T.
template <class T, flow F> struct staged {
  static_assert(std::is_trivially_copyable_v<T>,
                "plateau: staged<T, flow>: elements are moved by their bytes, "
                "so T must be trivially copyable");
  static_assert(!std::is_const_v<T> || F == flow::resident,
                "plateau: staged<T, flow>: only a resident field may be of const elements; one that is only "
                "read is flow::in");
  using element_type = T;
  static constexpr flow direction = F;
  static constexpr std::size_t streamed_bytes = is_streamed(F) ? sizeof(T) : 0; // of an element

  // The whole of it, as the caller has it: pinned host memory, or the device's.
  using slab = std::conditional_t<F == flow::resident, view<T, device_space>,
                                  view<std::conditional_t<F == flow::in, const T, T>, host_space>>;
  // A bucket of it, as the update gets it: device memory.
  using part = view<std::conditional_t<F == flow::in, const T, T>, device_space>;
};

template <class F> inline constexpr bool is_staged_field = false;
template <class T, flow F> inline constexpr bool is_staged_field<staged<T, F>> = true;

} // namespace plateau::inline v0
