// SPDX-License-Identifier: Apache-2.0
//
// The element kernels that everything needs: fill, convert, add, scale. Named functors, since nvcc refuses
// extended lambdas in private members; each runs over elements{n}.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

// to[i] = value
template <class T> struct fill {
  T value{};
  template <class S> PLATEAU_HD void operator()(index_t i, view<T, S> to) const { to[i] = value; }
};
// to[i] = from[i], through the accumulate type, rounded once
struct convert {
  template <class T, class U, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> from, view<U, S> to) const {
    to[i] = narrow<U>(widen(from[i]));
  }
};
// to[i] += from[i]
struct add {
  template <class T, class U, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> from, view<U, S> to) const {
    to[i] = narrow<U>(widen(to[i]) + widen(from[i]));
  }
};
// to[i] *= factor
struct scale {
  float factor = 1;
  template <class T, class S> PLATEAU_HD void operator()(index_t i, view<T, S> to) const {
    to[i] = narrow<T>(widen(to[i]) * factor);
  }
};

} // namespace plateau::inline v0
