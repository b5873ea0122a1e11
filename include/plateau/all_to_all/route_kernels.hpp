// SPDX-License-Identifier: Apache-2.0
//
// Routes on their way into rounds. A route is a token and one of its top_k slots, numbered token * top_k +
// slot; its id is an expert, or -1 where the token has no route in that slot. The kernels here look at ids
// and numbers only: they check the ids, make keys to group the routes by, count the groups, and say which
// route each row of a round carries and where each route's row lies. row_kernels.hpp then moves the rows.
#pragma once

#include <plateau/config.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <limits>

namespace plateau::inline v0::detail::dispatch {

// Over elements{routes}: what group_by_key gets, with experts + 1 keys. -1 goes behind all experts, and so
// does an id that names none: first_offender_blocks reports it.
struct route_key {
  index_t experts = 0;

  template <class S>
  PLATEAU_HD void operator()(index_t route, view<const std::int32_t, S> ids, // (routes)
                             view<std::int32_t, S> keys) const {
    const std::int32_t id = ids[route];
    keys[route] = id >= 0 && id < experts ? id : static_cast<std::int32_t>(experts);
  }
};

inline constexpr index_t offender_block = 4096; // ids to each row of first_offender_blocks
inline constexpr std::int64_t no_offender = std::numeric_limits<std::int64_t>::max();

constexpr index_t offender_blocks(index_t routes) { return (routes + offender_block - 1) / offender_block; }

struct smaller {
  PLATEAU_HD constexpr std::int64_t operator()(std::int64_t a, std::int64_t b) const { return b < a ? b : a; }
};

// Over rows{offender_blocks(routes)}: the first route of each block whose id is outside [-1, experts), or
// no_offender.
struct first_offender_blocks {
  index_t experts = 0;

  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t block, view<const std::int32_t, S> ids, // (routes)
                             view<std::int64_t, S> first) const {                        // (blocks), written
    const index_t begin = block * offender_block, left = ids.n - begin, known = experts;
    const std::int32_t* id = ids.p + begin;
    const std::int64_t found =
        team.reduce(left < offender_block ? left : offender_block, no_offender, smaller{}, [=](index_t i) {
          return id[i] < -1 || id[i] >= known ? std::int64_t{begin + i} : no_offender;
        });
    team.once([=] { first[block] = found; });
  }
};

// Over rows{1}: answer[0] = the first offending route + 1, or 0 when there is none; answer[1] = its id.
// Fetched together with the counts, so that a bad id costs no round trip of its own.
struct first_offender_of_all {
  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t, view<const std::int64_t, S> first, // (blocks)
                             view<const std::int32_t, S> ids,                        // (routes)
                             view<std::int64_t, S> answer) const {                   // (2), written
    const std::int64_t* of_block = first.p;
    const std::int64_t found =
        team.reduce(first.n, no_offender, smaller{}, [=](index_t i) { return of_block[i]; });
    team.once([=] {
      answer[0] = found == no_offender ? 0 : found + 1;
      answer[1] = found == no_offender ? 0 : ids[found];
    });
  }
};

// Over elements{experts}: the routes of each expert.
struct counts_from_offsets {
  template <class S>
  PLATEAU_HD void operator()(index_t expert,
                             view<const std::int64_t, S> offsets,  // (experts + 2) of group_by_key
                             view<std::int64_t, S> counts) const { // (experts), written
    counts[expert] = offsets[expert + 1] - offsets[expert];
  }
};

// The j-th of n numbers [0, n) in strides: 0, stride, 2 stride, ..., then 1, stride + 1, ... and so on, each
// number once for any stride >= 1. The first n % stride of those sequences have one number more.
PLATEAU_HD constexpr index_t spread(index_t j, index_t n, index_t stride) {
  const index_t shorter = n / stride, longer = n % stride, first_shorter = longer * (shorter + 1);
  if (j < first_shorter) return j / (shorter + 1) + j % (shorter + 1) * stride;
  const index_t k = j - first_shorter;
  return longer + k / shorter + k % shorter * stride;
}

// Some rows of a send slot, one behind the other: the next rows that this rank sends of one expert's group.
struct slot_block {
  index_t group_first = 0;    // where the group begins in the order by expert
  index_t group_rows = 0;     // all rows of the group
  index_t first_in_group = 0; // how many of them went in earlier blocks
  index_t slot_first = 0;     // the row of the slot at which the block begins
};

// In ascending order of slot_first, without gaps: a block ends where the next one begins.
template <int N> struct slot_blocks {
  index_t count = 0;
  slot_block block[N] = {};
};

// Over elements{rows}: which route each row of the send slot carries, and where each route's row lies. A
// round of more than N blocks takes several launches, each of consecutive blocks, with the same `base` and
// with `slot_route` cut to the rows of its blocks. Blocks travel inside the kernel, so that no copy to the
// device goes before it.
//
// A position is base + row: rows are numbered through all rounds. Only routes that are in these blocks get
// one; fill the positions with -1 before the first round, as scatter_add reads those of a token's other
// routes too.
template <int N = 32> struct place_routes {
  slot_blocks<N> blocks;
  index_t first_row = 0; // of the slot, where the first block begins
  index_t base = 0;      // the rows that this rank has sent in earlier rounds
  index_t stride = 1;    // in which order the routes of a group travel; see spread

  template <class S>
  PLATEAU_HD void operator()(index_t i, view<const std::int32_t, S> order, // (routes) grouped by expert
                             view<std::int32_t, S> slot_route,             // (rows of these blocks), written
                             view<std::int32_t, S> position) const { // (routes), written at their routes
    const index_t row = first_row + i;
    index_t at = 0, after = blocks.count; // the last block that begins at or before the row lies in between
    while (after - at > 1) {
      const index_t middle = (at + after) / 2;
      if (blocks.block[middle].slot_first <= row)
        at = middle;
      else
        after = middle;
    }
    const slot_block& b = blocks.block[at];
    const index_t in_group = b.first_in_group + row - b.slot_first;
    const std::int32_t route = order[b.group_first + spread(in_group, b.group_rows, stride)];
    slot_route[i] = route;
    position[route] = static_cast<std::int32_t>(base + row);
  }
  template <class S>
  std::uint64_t moved_bytes(index_t n, view<const std::int32_t, S>, view<std::int32_t, S>,
                            view<std::int32_t, S>) const {
    return 3 * sizeof(std::int32_t) * static_cast<std::uint64_t>(n);
  }
};
static_assert(sizeof(place_routes<>) < 4096 - 256, "plateau: CUDA takes 4 KiB of kernel arguments");

} // namespace plateau::inline v0::detail::dispatch
