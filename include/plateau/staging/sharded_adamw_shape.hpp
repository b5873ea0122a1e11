// SPDX-License-Identifier: Apache-2.0
//
// What a sharded AdamW is made for: lists of parameters, each with the ranks that hold it, and how much of
// the device buckets and exchanges may take.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/staging/adamw_shape.hpp>
#include <plateau/staging/shard_plan.hpp>
#include <plateau/staging/sharded_shape.hpp>
#include <plateau/vote.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Where the state of a list is: dealt to the ranks that hold the parameters (ZeRO-1), or all of it on each.
enum class adamw_state_of : unsigned char { own_shard, all };

struct sharded_adamw_shape {
  adamw_shape update{};
  adamw_state_of state = adamw_state_of::own_shard;
  // Of the device, for sums of gradients over ranks, which alternate with updates: 0 for as much as the
  // update's slots take. A grain for each rank at least.
  std::size_t exchange_bytes = 0;

  void add_to(digest& d) const {
    update.add_to(d);
    d.add(update.bucket_elements).add(state).add(exchange_bytes);
  }
  std::string text() const {
    return update.text() + ", buckets of " + std::to_string(update.bucket_elements) + " elements, " +
           (state == adamw_state_of::all ? "all state on each rank" : "state dealt to the ranks");
  }
};

// A list of parameters that the ranks of a group hold alike: tensors one after another. The same on all of
// its ranks.
struct sharded_list {
  int ranks = 1;
  index_t elements = 0, tensors = 0;
};

namespace detail::adamw {

// Shards are whole grains, and so are pieces, so that the norm has the bits of one that is not sharded.
inline shard_plan shards_of(const sharded_list& list, adamw_state_of state, index_t grain) {
  return shard_plan::even(list.elements, state == adamw_state_of::all ? 1 : list.ranks, grain);
}
inline sharded_shape pieces_of(const sharded_list& list, std::size_t device_bytes, index_t grain) {
  constexpr int slots = 2;
  const auto ways = static_cast<std::size_t>(2 * list.ranks - 1);
  const std::size_t least =
      slots * (ways * static_cast<std::size_t>(grain) * sizeof(float) + 2 * part_alignment);
  sharded_shape s = sharded_shape::fitting(std::max(device_bytes, least), list.ranks, slots, grain);
  // No more than there is.
  const index_t most = shard_plan::even(list.elements, list.ranks, grain).longest();
  s.piece_elements = std::max(grain, std::min(s.piece_elements, (most + grain - 1) / grain * grain));
  return s;
}

// What a shard has of the tensors of a list: those that are cut at its ends in part, those outside not at
// all. Throws config_error for a tensor of fewer than 0 elements.
inline std::vector<adamw_tensor> tensors_in(const element_range& shard,
                                            std::span<const adamw_tensor> tensors) {
  std::vector<adamw_tensor> own;
  index_t at = 0;
  for (const adamw_tensor& t : tensors) {
    if (t.elements < 0)
      throw config_error("plateau: sharded_adamw: a tensor cannot have " + std::to_string(t.elements) +
                         " elements");
    const index_t first = std::max(at, shard.first),
                  last = std::min(at + t.elements, shard.first + shard.elements);
    if (first < last) {
      own.push_back(t);
      own.back().elements = last - first;
    }
    at += t.elements;
  }
  return own;
}

// Collective: the ranks of each list vote on its tensors, then all ranks on whether these agreed. No rank
// leaves early: the votes of the next list would miss it.
template <class Communicator, class Lists> void agree_on_lists(Communicator& world, const Lists& lists) {
  std::optional<failure> mine;
  for (const auto& list : lists) {
    digest d;
    for (const adamw_tensor& t : list.tensors) d.add(t.elements).add(t.group).add(t.decays);
    const auto sizes = list.sizes();
    try {
      vote(*list.comm, d, nullptr, "sharded_adamw, a list",
           std::to_string(sizes.tensors) + " tensors of " + std::to_string(sizes.elements) +
               " elements together (length, group and decay of each must agree)");
    } catch (...) {
      if (!mine) mine = failure::current();
    }
  }
  vote(world, digest(), mine ? &*mine : nullptr, "sharded_adamw");
}

} // namespace detail::adamw

} // namespace plateau::inline v0
