// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a dry run are alike: classes of ranks that were told the same and have done the same, up to
// the numbers of their peers. The first of a class stands for all.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/dry_run/program.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <vector>

namespace plateau::inline v0::dry {

// What a rank has done, without the numbers of its peers and of its tables. Of what it exchanged, how much.
inline std::uint64_t digest_of(const rank_program& p) {
  digest d;
  for (const instruction& i : p.instructions) {
    d.add(static_cast<std::int64_t>(i.what)).add(static_cast<std::int64_t>(i.on)).add(i.stream).add(i.other);
    d.add(static_cast<std::int64_t>(i.bytes)).add(static_cast<std::int64_t>(i.flops));
    d.add(static_cast<std::int64_t>(i.type)).add(i.round_trip);
  }
  const auto group_size = [&](std::uint32_t group) {
    return static_cast<std::int64_t>(p.groups[group].members.size());
  };
  const auto add = [&](const std::vector<message>& list) {
    std::size_t bytes = 0;
    for (const message& m : list) bytes += m.bytes;
    d.add(static_cast<std::int64_t>(list.size())).add(static_cast<std::int64_t>(bytes));
  };
  for (const exchange_record& e : p.exchanges) {
    d.add(group_size(e.group));
    add(e.sends);
    add(e.receives);
  }
  for (const host_exchange_record& e : p.host_exchanges)
    d.add(group_size(e.group)).add(static_cast<std::int64_t>(e.bytes));
  return d.value();
}

// given (ranks, integers_each): for each rank the first one that gave the same.
inline std::vector<int> first_alike(std::span<const std::int64_t> given, std::size_t integers_each) {
  std::map<std::vector<std::int64_t>, int> first;
  std::vector<int> stands_for;
  for (std::size_t at = 0; at + integers_each <= given.size(); at += integers_each) {
    const auto mine = given.subspan(at, integers_each);
    const int rank = static_cast<int>(at / integers_each);
    stands_for.push_back(first.try_emplace({mine.begin(), mine.end()}, rank).first->second);
  }
  return stands_for;
}

// Who has to meet when groups do, each group by itself: for each rank the lowest one that it is tied to,
// since they are in one group, or one stands for the other. group_of (ranks): one of the group's members, the
// same for all of them; -1 if the rank is in none.
inline std::vector<int> tied_ranks(std::span<const int> stands_for, std::span<const int> group_of) {
  std::vector<int> parent(stands_for.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int r) {
    int& up = parent[static_cast<std::size_t>(r)];
    while (parent[static_cast<std::size_t>(up)] != up) up = parent[static_cast<std::size_t>(up)];
    return up;
  };
  const auto tie = [&](int a, int b) {
    a = root(a);
    b = root(b);
    parent[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  };
  for (std::size_t r = 0; r < parent.size(); ++r) {
    tie(static_cast<int>(r), stands_for[r]);
    if (group_of[r] >= 0) tie(static_cast<int>(r), group_of[r]);
  }
  for (std::size_t r = 0; r < parent.size(); ++r) parent[r] = root(static_cast<int>(r));
  return parent;
}

// For each rank, where the one that stands for it comes among those of its part that stand for any. part
// (ranks): a number that is the same for all of one part; empty if there is only one.
inline std::vector<int> places_among_firsts(std::span<const int> stands_for, std::span<const int> part = {}) {
  std::vector<int> place(stands_for.size());
  std::map<int, int> next;
  for (std::size_t r = 0; r < stands_for.size(); ++r) {
    const auto first = static_cast<std::size_t>(stands_for[r]);
    place[r] = first == r ? next[part.empty() ? 0 : part[r]]++ : place[first];
  }
  return place;
}

} // namespace plateau::inline v0::dry
