// SPDX-License-Identifier: Apache-2.0
//
// What a layer of a checkpointed sequence is: a class of yours that computes forward from an input and,
// backward, from the same input again. It owns its weights, gradients and scratch; one object may stand for
// many layers by counting its calls, or there is a std::vector of them.
//
//   index_t input_columns() const;  index_t output_columns() const;
//   void forward(stream&, tile<const T> x, tile<T> y);                       // every y is written
//   void backward(stream&, tile<const T> x, tile<const T> dy, tile<T> dx);   // every dx is written
//
// Before backward the sequence computes again what that needs of forward, in one of three ways:
//   - void recompute(stream&, tile<const T> x), if there is one: the part of forward that backward does not
//     compute itself. A layer whose expert runs inside a dispatch leaves that to the dispatch's backward.
//   - static constexpr bool backward_recomputes = true: nothing, backward does it all.
//   - else forward, into rows that nobody reads.
//
// A layer may keep one to three tensors from forward to backward beside its input, such as saved ids and
// gates, which are parked as that is:
//   static constexpr int kept_tensors = 2;  index_t kept_bytes(int i, index_t rows) const;
// Then forward has one more argument, std::array<view<unsigned char>, kept_tensors>, to be written; recompute
// and backward have the same of const; and where not every input is kept, forward_again(stream&, x, y, kept)
// does what forward did with what it kept.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <array>
#include <concepts>
#include <type_traits>

namespace plateau::inline v0 {

template <class L> constexpr int kept_tensors_of() {
  if constexpr (requires { L::kept_tensors; })
    return L::kept_tensors;
  else
    return 0;
}
template <class L> constexpr bool backward_recomputes_of() {
  if constexpr (requires { L::backward_recomputes; })
    return L::backward_recomputes;
  else
    return false;
}
// What a layer wrote in forward, and what it gets again; nothing for one that keeps nothing.
template <class L>
using kept_out = std::array<view<unsigned char>, static_cast<std::size_t>(kept_tensors_of<L>())>;
template <class L>
using kept_in = std::array<view<const unsigned char>, static_cast<std::size_t>(kept_tensors_of<L>())>;

namespace detail::offload {

template <class L, class S, class T>
concept recomputes = requires(L& l, S& s, tile<const T> x, const kept_in<L>& k) {
  l.recompute(s, x, k);
}
|| requires(L& l, S& s, tile<const T> x) {
  requires kept_tensors_of<L>()
  == 0;
  l.recompute(s, x);
};
template <class L, class S, class T>
concept goes_forward_again = requires(L& l, S& s, tile<const T> x, tile<T> y, const kept_in<L>& k) {
  l.forward_again(s, x, y, k);
};

// Calls with the argument for kept tensors only where there are any.
template <class L, class S, class T>
void call_forward(L& l, S& s, tile<const T> x, tile<T> y, const kept_out<L>& k) {
  if constexpr (kept_tensors_of<L>() == 0)
    l.forward(s, x, y);
  else
    l.forward(s, x, y, k);
}
template <class L, class S, class T>
void call_forward_again(L& l, S& s, tile<const T> x, tile<T> y, const kept_in<L>& k) {
  if constexpr (kept_tensors_of<L>() == 0)
    l.forward(s, x, y);
  else if constexpr (goes_forward_again<L, S, T>)
    l.forward_again(s, x, y, k);
}
template <class L, class S, class T> void call_recompute(L& l, S& s, tile<const T> x, const kept_in<L>& k) {
  if constexpr (kept_tensors_of<L>() == 0)
    l.recompute(s, x);
  else
    l.recompute(s, x, k);
}
template <class L, class S, class T>
void call_backward(L& l, S& s, tile<const T> x, tile<const T> dy, tile<T> dx, const kept_in<L>& k) {
  if constexpr (kept_tensors_of<L>() == 0)
    l.backward(s, x, dy, dx);
  else
    l.backward(s, x, dy, dx, k);
}

// A list of layers of one type counts as all of them.
template <class L>
concept layer_list = requires(L& l) {
  l.size();
  l[0];
};
template <class L> struct layer_of { using type = L; };
template <layer_list L> struct layer_of<L> {
  using type = std::remove_cvref_t<decltype(std::declval<L&>()[0])>;
};

} // namespace detail::offload

// One sentence for each member that is missing.
template <class L, class Stream, class T> constexpr bool check_layer() {
  using namespace detail::offload;
  static_assert(
      requires(const L& l) {
        { l.input_columns() } -> std::convertible_to<index_t>;
        { l.output_columns() } -> std::convertible_to<index_t>;
      },
      "plateau: a checkpointed layer needs input_columns() and output_columns()");
  static_assert(
      requires(L & l, Stream & s, tile<const T> x, tile<T> y, const kept_out<L>& k) {
        call_forward<L, Stream, T>(l, s, x, y, k);
      },
      "plateau: a checkpointed layer needs forward(stream&, tile<const T> x, tile<T> y)");
  static_assert(kept_tensors_of<L>() >= 0 && kept_tensors_of<L>() <= 3,
                "plateau: a checkpointed layer keeps at most three tensors beside its input");
  static_assert(kept_tensors_of<L>() == 0 || recomputes<L, Stream, T> || backward_recomputes_of<L>(),
                "plateau: a checkpointed layer that keeps tensors needs recompute(stream&, x, kept), or "
                "backward_recomputes = true: forward would write them again");
  return true;
}

} // namespace plateau::inline v0
