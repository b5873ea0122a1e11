// SPDX-License-Identifier: Apache-2.0
//
// Kernel arguments say what they do. in(v) arrives in the kernel as a view of const; out(v) promises that
// every byte is written; some(v) that some may be; inout(v) is both; accumulates(v) adds integers in any
// order. A raw pointer or an untagged tensor is a compile error, since it would hide an access. Host and CUDA
// ignore the tags; a data-free backend lives off them: two conflicting accesses that no event orders can then
// be named, with both source lines.
#pragma once

#include <plateau/accessible_from.hpp>
#include <plateau/config.hpp>
#include <plateau/tensor_traits.hpp>
#include <plateau/view.hpp>

#include <string>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

enum class access_mode : unsigned char { read = 1, write = 2, update = 3, partial = 6, accumulate = 7 };

constexpr bool reads(access_mode m) { return (static_cast<unsigned>(m) & 1u) != 0; }
constexpr bool writes(access_mode m) { return (static_cast<unsigned>(m) & 2u) != 0; }

// A view with its access. Made by the functions below; a kernel receives `v`.
template <class View, access_mode Mode> struct arg {
  using view_type = View;
  static constexpr access_mode mode = Mode;
  View v;
};

template <class View> struct constant_view;
template <class T, class S> struct constant_view<view<T, S>> { using type = view<const T, S>; };
template <class T, class S> struct constant_view<tile<T, S>> { using type = tile<const T, S>; };
template <class T, class S> struct constant_view<tile_batch<T, S>> { using type = tile_batch<const T, S>; };

// Read only. Arrives as a view of const.
template <class View>
  requires is_view<View>
constexpr arg<typename constant_view<View>::type, access_mode::read> in(View v) { return {v}; }
// Every byte is written, none is read.
template <class View>
  requires is_view<View>
constexpr arg<View, access_mode::write> out(View v) {
  static_assert(!std::is_const_v<typename View::element_type>, "plateau: out(v) of a view of const");
  return {v};
}
// Some bytes may be written, none is read; the others keep their values.
template <class View>
  requires is_view<View>
constexpr arg<View, access_mode::partial> some(View v) {
  static_assert(!std::is_const_v<typename View::element_type>, "plateau: some(v) of a view of const");
  return {v};
}
// Read and written.
template <class View>
  requires is_view<View>
constexpr arg<View, access_mode::update> inout(View v) {
  static_assert(!std::is_const_v<typename View::element_type>, "plateau: inout(v) of a view of const");
  return {v};
}
// Integers added in any order by several kernels or members: the sum does not depend on the order.
template <class View>
  requires is_view<View>
constexpr arg<View, access_mode::accumulate> accumulates(View v) {
  static_assert(std::is_integral_v<typename View::element_type>,
                "plateau: accumulates(v) is for integers only: a floating-point sum depends on its order");
  static_assert(!std::is_const_v<typename View::element_type>, "plateau: accumulates(v) of a view of const");
  return {v};
}

template <class A> inline constexpr bool is_arg = false;
template <class V, access_mode M> inline constexpr bool is_arg<arg<V, M>> = true;
// The space of a tagged view's memory; void for a plain value, which is nowhere.
template <class A> struct space_of_argument { using type = void; };
template <class V, access_mode M> struct space_of_argument<arg<V, M>> { using type = typename V::space; };
// A type that may not be a kernel argument as it is, since nobody could tell what the kernel does to it: a
// pointer, or whatever has tensor_traits, a std::span for instance.
template <class A> inline constexpr bool hides_access = std::is_pointer_v<A> || tensor<A>;

// What the kernel receives: the view of a tagged argument, any other trivially copyable value as it is.
template <class V, access_mode M> PLATEAU_HD constexpr V unwrap(const arg<V, M>& a) { return a.v; }
template <class T> PLATEAU_HD constexpr T unwrap(const T& value) {
  static_assert(
      !hides_access<T>,
      "plateau: a kernel argument is in(v), out(v), some(v), inout(v), accumulates(v) or a plain value; "
      "a raw pointer, an untagged view or another tensor hides an access");
  static_assert(std::is_trivially_copyable_v<T>, "plateau: a kernel argument must be trivially copyable");
  return value;
}
template <class A> using unwrapped = decltype(unwrap(std::declval<const A&>()));

// The place of a call, for errors; empty where nobody knows.
struct source_line {
  const char* file = "";
  int line = 0;

  std::string text() const {
    return *file == '\0' ? std::string() : std::string(" at ") + file + ":" + std::to_string(line);
  }
};

// A stream and the place of the call: made by implicit conversion at each operation, so that errors, traces
// and the order check can name the line. (std::source_location is missing in clang 14.)
template <class Stream> struct on {
  Stream& stream;
  const char* file;
  int line;

  constexpr on(Stream& s, const char* at_file = __builtin_FILE(), int at_line = __builtin_LINE())
      : stream(s), file(at_file), line(at_line) {}
  constexpr source_line place() const { return {file, line}; }
  // A backend or communicator whose operation takes a plain stream fits too, without the line.
  constexpr operator Stream&() const { return stream; }
};

} // namespace plateau::inline v0
