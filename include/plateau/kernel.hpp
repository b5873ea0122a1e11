// SPDX-License-Identifier: Apache-2.0
//
// What may be launched: one static check for every backend, so that a wrong kernel is refused with the same
// sentence everywhere, by the compilers that report a failed constraint only as "no matching function" too.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/team.hpp>

#include <type_traits>

namespace plateau::inline v0 {

// Stops the compilation when Kernel cannot run over Grid with these (tagged) arguments.
template <class Grid, class Kernel, class... Args> constexpr void check_kernel() {
  static_assert(std::is_same_v<Grid, elements> || std::is_same_v<Grid, rows>,
                "plateau kernel: the grid is elements{n} or rows{n}");
  static_assert(std::is_trivially_copyable_v<Kernel>,
                "plateau kernel: the functor must be trivially copyable: it travels to the device by value");
  static_assert(
      !(hides_access<Args> || ...),
      "plateau: a kernel argument is in(v), out(v), some(v), inout(v), accumulates(v) or a plain value; "
      "a raw pointer or an untagged view hides an access");
  if constexpr (std::is_same_v<Grid, rows>)
    static_assert(
        std::is_invocable_v<const Kernel&, serial_team&, index_t, unwrapped<Args>...>,
        "plateau kernel: not callable as kernel(team, row, args...) const; in(v) arrives as a view of "
        "const, out(v), some(v), inout(v) and accumulates(v) as a view of non-const");
  else
    static_assert(
        std::is_invocable_v<const Kernel&, index_t, unwrapped<Args>...>,
        "plateau kernel: not callable as kernel(index, args...) const; in(v) arrives as a view of const, "
        "out(v), some(v), inout(v) and accumulates(v) as a view of non-const");
}

} // namespace plateau::inline v0
