// SPDX-License-Identifier: Apache-2.0
//
// How a kernel is written once for host and device. An element kernel is a named functor called as
// `kernel(index, args...)`, once per index of `elements{n}`. A row kernel is called as
// `kernel(team, row, args...)`, once per row of `rows{n}`, by every member of a team. A team is a block or a
// warp on a GPU and one thread on a CPU.
//
//   struct inverse_norm {                               // out[r] = 1 / |x[r]|
//     template <class Team, class Space>
//     PLATEAU_HD void operator()(Team& team, index_t r, tile<const float, Space> x,
//                                view<float, Space> out) const {
//       const float* row = x.row(r);
//       const float sum = team.reduce(x.cols, 0.0f, plus{}, [=](index_t i) { return row[i] * row[i]; });
//       team.once([&] { out[r] = rsqrt(sum); });
//     }
//   };
//
// The rules of kernels:
//
// - Calls of an element kernel, of a row kernel for different rows, and of a function given to for_each or
//   reduce are independent: none reads or writes what another one writes. They run in any order and several
//   at a time, and the compiler is told so. Adding to one location from two of them is an error.
//
// - Every member of a team executes the kernel's body: outside for_each, for_each_sqrt and once it only
//   computes and reads.
//
// - Every member function ends with a barrier of the team: what was written before it is seen by all members
//   after it. So all members make the same calls in the same order, and a branch around a call depends only
//   on values that all have in common.
//
// - The functor is trivially copyable, arguments arrive by value, and nothing allocates or locks.
//
// - Float loops call plateau::exp and its like: the standard library's functions do not vectorise. The square
//   roots of many elements are best taken with for_each_sqrt; plateau::sqrt fits in any loop, and takes four
//   times as long.
#pragma once

#include <plateau/config.hpp>

#include <cmath>
#include <type_traits>

// Iterations are independent by contract; told so, GCC vectorises at -O2 without run-time checks for overlap.
// Clang makes those checks, and would warn of every loop that it cannot vectorise.
#if defined(__GNUC__) && !defined(__clang__)
#define PLATEAU_INDEPENDENT _Pragma("GCC ivdep")
#else
#define PLATEAU_INDEPENDENT
#endif

namespace plateau::inline v0 {

// One call of an element kernel per index in [0, n).
struct elements {
  index_t n = 0;
};

// One call of a row kernel, by a whole team, per row in [0, n).
struct rows {
  index_t n = 0;
};

// Operations for `reduce`. Any trivially copyable functor will do that is commutative, and associative up to
// rounding.
struct plus {
  template <class T> PLATEAU_HD constexpr T operator()(const T& a, const T& b) const { return a + b; }
};

// A NaN on the right is passed over: check finiteness where it matters. Start it at lowest<T>().
struct maximum {
  template <class T> PLATEAU_HD constexpr T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};

// Every host team sums over this many partial results, whatever the machine's vectors: element i goes to lane
// i % team_lanes, in order, and a tree joins the lanes. The bits depend on nothing else, and the error is
// that of a sum a factor of 32 shorter.
inline constexpr index_t team_lanes = 32;

// A team of one member: the calling thread. `reduce` takes any trivially copyable value type.
class serial_team {
 public:
  PLATEAU_HD static constexpr index_t size() { return 1; }
  PLATEAU_HD static constexpr index_t rank() { return 0; }

  // f(i) for every i in [0, n).
  template <class F> PLATEAU_HD void for_each(index_t n, F f) const {
    index_t i = 0;
    for (; i + team_lanes <= n; i += team_lanes) {
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane) f(i + lane);
    }
    const index_t rest = n - i;
    for (index_t lane = 0; lane < rest; ++lane) f(i + lane);
  }

  // op over f(0) ... f(n - 1), starting from `identity` in each lane: `identity` enters more than once, so
  // that it must not change what it is combined with. All members get the result.
  template <class T, class Op, class F> PLATEAU_HD T reduce(index_t n, T identity, Op op, F f) const {
    static_assert(std::is_trivially_copyable_v<T>,
                  "plateau team: reduce needs a trivially copyable value type");
    T lanes[team_lanes];
    for (index_t lane = 0; lane < team_lanes; ++lane) lanes[lane] = identity;
    index_t i = 0;
    // Two blocks at a time: the compiler keeps the lanes in memory, and loads and stores them half as often.
    for (; i + 2 * team_lanes <= n; i += 2 * team_lanes) {
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane)
        lanes[lane] =
            op(op(lanes[lane], static_cast<T>(f(i + lane))), static_cast<T>(f(i + team_lanes + lane)));
    }
    for (; i + team_lanes <= n; i += team_lanes) {
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane)
        lanes[lane] = op(lanes[lane], static_cast<T>(f(i + lane)));
    }
    const index_t rest = n - i;
    for (index_t lane = 0; lane < rest; ++lane) lanes[lane] = op(lanes[lane], static_cast<T>(f(i + lane)));
    return join(lanes, op);
  }

  // f(i, root) for every i in [0, n), where root is the correctly rounded square root of radicand(i). The two
  // are called in this order for one i, so that f may read what radicand wrote. A compiler that minds errno
  // vectorises no loop around a square root; this one it can split in three.
  template <class Radicand, class F> PLATEAU_HD void for_each_sqrt(index_t n, Radicand radicand, F f) const {
    for (index_t i = 0; i < n; ++i) f(i, ::sqrtf(radicand(i)));
  }

  // f() by one member.
  template <class F> PLATEAU_HD void once(F f) const { f(); }

  // The tree that joins the lanes, the same for every host team. Overwrites them. Widths are constants, since
  // -O2 vectorises no loop whose count it does not know.
  template <index_t Width = team_lanes / 2, class T, class Op> PLATEAU_HD static T join(T* lanes, Op op) {
    for (index_t lane = 0; lane < Width; ++lane) lanes[lane] = op(lanes[lane], lanes[lane + Width]);
    if constexpr (Width > 1)
      return join<Width / 2>(lanes, op);
    else
      return lanes[0];
  }
};

} // namespace plateau::inline v0
