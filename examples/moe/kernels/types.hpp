// SPDX-License-Identifier: Apache-2.0
//
// The names every kernel of the model uses. The kernels are functors for plateau's `launch`: an element
// kernel is called as kernel(i, views...), a row kernel as kernel(team, row, views...). They store in float,
// bfloat16 or half, compute in float and round once. A row kernel copies row pointers and its own members to
// locals before it captures them: a store through a view could otherwise change them as far as the compiler
// knows, and the loop would not vectorise.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace moe {

using plateau::index_t;
using plateau::maximum;
using plateau::narrow;
using plateau::plus;
using plateau::tile;
using plateau::tile_batch;
using plateau::view;
using plateau::widen;

// to = from, bit for bit. By member for the two-byte types: GCC does not vectorise a loop of struct
// assignments.
template <class T> PLATEAU_HD void copy_element(const T& from, T& to) {
  if constexpr (sizeof(T) == 2)
    to.bits = from.bits;
  else
    to = from;
}

} // namespace moe
