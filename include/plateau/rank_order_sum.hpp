// SPDX-License-Identifier: Apache-2.0
//
// The sum at the heart of the collectives: what the other ranks have sent, and what this rank has itself,
// added in the order of the rank numbers. The grouping depends on the number of ranks alone, so the bits do
// not depend on which rank adds.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>

namespace plateau::inline v0 {

namespace detail {

// Floating-point numbers are added in their accumulate type and rounded once for each kernel; integers as
// they are. Elements are read before they are written, so `to` may be one of the others.
template <class T> PLATEAU_HD constexpr auto to_sum(T value) {
  if constexpr (floating_scalar<T>)
    return widen(value);
  else
    return value;
}
template <class T, class Sum> PLATEAU_HD constexpr T from_sum(Sum sum) {
  if constexpr (floating_scalar<T>)
    return narrow<T>(sum);
  else
    return static_cast<T>(sum);
}
// to[i] = a[i] + b[i]
struct sum_two {
  template <class T, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> a, view<const T, S> b, view<T, S> to) const {
    to[i] = from_sum<T>(to_sum(a[i]) + to_sum(b[i]));
  }
};
// to[i] = (a[i] + b[i]) + c[i]
struct sum_three {
  template <class T, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> a, view<const T, S> b, view<const T, S> c,
                             view<T, S> to) const {
    to[i] = from_sum<T>((to_sum(a[i]) + to_sum(b[i])) + to_sum(c[i]));
  }
};

// Scratch as slots of T, one for each of the other ranks.
template <class T, class S> view<T, S> slots_of(scratch_view scratch) {
  return {reinterpret_cast<T*>(scratch.p), static_cast<index_t>(scratch.bytes() / sizeof(T))};
}
// Where rank `me` keeps the n elements of rank r.
template <class T, class S> view<T, S> slot_of(view<T, S> slots, int me, int r, index_t n) {
  return slots.sub((r > me ? r - 1 : r) * n, n);
}

// result = ((x0 + x1) + x2) + ...: x of rank r is its slot, that of `me` is `own`, which may be the result
// itself. Two or three ranks at first, then two at a time; sums that are not the last lie in a slot that is
// done with.
template <class T, class S, class Backend>
void sum_in_rank_order(Backend& backend, on<typename Backend::stream> s, int me, int ranks,
                       view<const T, S> own, view<T, S> slots, view<T, S> result) {
  const index_t n = result.n;
  const auto of = [&](int r) { return r == me ? in(own) : in(slot_of(slots, me, r, n)); };
  if (ranks == 1) {
    if (own.p != result.p) backend.copy(s, in(own), out(result));
    return;
  }
  const auto to = [&](int last) {
    return last + 1 == ranks ? out(result) : out(slot_of(slots, me, me == 0 ? 1 : 0, n));
  };
  int last = ranks % 2 == 0 ? 1 : 2;
  if (last == 1)
    backend.launch(s, elements{n}, sum_two{}, of(0), of(1), to(last));
  else
    backend.launch(s, elements{n}, sum_three{}, of(0), of(1), of(2), to(last));
  while (last + 1 < ranks) {
    const view<T, S> sum = to(last).v;
    backend.launch(s, elements{n}, sum_three{}, in(sum), of(last + 1), of(last + 2), to(last + 2));
    last += 2;
  }
}

} // namespace detail

} // namespace plateau::inline v0
