// SPDX-License-Identifier: Apache-2.0
//
// What may be launched: one static check for every backend, so that a wrong kernel is refused with the same
// sentence everywhere, by the compilers that report a failed constraint only as "no matching function" too.
// The same for host tasks, and for the size of a grid, which is known at the call only.
#pragma once

#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/team.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

// A kernel that touches a part of what it is given may say how many bytes it reads and writes, which it knows
// from its grid's size and its arguments as they arrive:
//   std::uint64_t moved_bytes(index_t n, args...) const;
// Only the timeline of a dry run asks; otherwise it charges for all of every argument.
template <class Kernel, class... Args>
concept says_moved_bytes = requires(const Kernel& kernel, index_t n, const Args&... args) {
  { kernel.moved_bytes(n, unwrap(args)...) } -> std::convertible_to<std::uint64_t>;
};

// Stops the compilation when Kernel cannot run over Grid on Backend with these (tagged) arguments.
template <class Backend, class Grid, class Kernel, class... Args> constexpr void check_kernel() {
  static_assert(std::is_same_v<Grid, elements> || std::is_same_v<Grid, rows>,
                "plateau kernel: the grid is elements{n} or rows{n}");
  static_assert(std::is_trivially_copyable_v<Kernel>,
                "plateau kernel: the functor must be trivially copyable: it travels to the device by value");
  static_assert(
      !(hides_access<Args> || ...),
      "plateau: a kernel argument is in(v), out(v), some(v), inout(v), accumulates(v) or a plain value; "
      "a raw pointer, an untagged view or another tensor hides an access");
  check_accessible<Backend, typename space_of_argument<Args>::type...>();
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

// Stops the compilation when f(args...) cannot run as a host task: such code touches host memory only.
template <class F, class... Args> constexpr void check_host_task() {
  static_assert(((std::is_void_v<typename space_of_argument<Args>::type> ||
                  std::is_same_v<typename space_of_argument<Args>::type, host_space>)&&...),
                "plateau host task: its views are of host memory (host_space); copy device memory to pinned "
                "memory first");
  static_assert(std::is_invocable_v<F&, unwrapped<Args>...>,
                "plateau host task: not callable as f(args...); in(v) arrives as a view of const");
}

// Throws config_error for a grid of negative size. `owner` names the rank, `at` the place of the call.
template <class Grid> void check_grid(Grid grid, source_line at = {}, const char* owner = "") {
  if (grid.n < 0)
    throw config_error(error_prefix(owner) + "launch: a grid of " + std::to_string(grid.n) +
                       (std::is_same_v<Grid, rows> ? " rows" : " elements") + at.text());
}

} // namespace plateau::inline v0
