// SPDX-License-Identifier: Apache-2.0
//
// Who is where: the host's books of a store, without a backend's operations. An item is a tensor of one
// micro-batch; its place in the slab of pinned memory is its own, so nothing fragments. Slots of the device
// are shared by the items of a kind; a tensor that is not parked has a slot to itself. Everything is decided
// in the order in which the host asks, never by what has happened to be done.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/offload/offload_plan.hpp>
#include <plateau/offload/offload_shape.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace plateau::inline v0::detail::offload {

inline constexpr index_t nowhere = -1;

enum class access : unsigned char { none, writing, reading };

template <class Event> struct item {
  index_t slot = nowhere;
  index_t bytes = 0; // written
  access scope = access::none;
  bool open = false, written = false;
  bool read = false;           // since it was written
  bool ahead = false;          // is next in turn: others are to leave it its slot
  bool restored = false;       // its slot holds what came back, not what was written there
  Event copied_out, copied_in; // the last copies of its place in the slab
};

template <class Event> struct slot {
  index_t holder = nowhere;
  std::uint64_t touched = 0;
  index_t first_byte = 0, bytes = 0;
  int kind = 0;
  bool own = false;     // of one tensor that is not parked
  bool unread = false;  // what made the contents is the last that touched them
  bool parking = false; // nobody has waited yet for the copy out
  Event ready, used, copied_out;
};

template <class Event> class table {
 public:
  using item_type = item<Event>;
  using slot_type = slot<Event>;

  table(const offload_shape& shape, const offload_plan& plan)
      : in_flight_(shape.in_flight), ahead_(shape.restore_ahead ? shape.restored_at_once - 1 : 0),
        items_(static_cast<std::size_t>(shape.count() * shape.in_flight)), place_(items_.size(), nowhere),
        before_(static_cast<std::size_t>(shape.count()), nowhere),
        newest_(static_cast<std::size_t>(index_t{offload_kinds} * shape.in_flight), nowhere) {
    index_t byte = 0;
    for (int k = 0; k < offload_kinds; ++k)
      for (index_t n = 0; n < plan.slots[static_cast<std::size_t>(k)]; ++n) {
        add(plan.slot_bytes[static_cast<std::size_t>(k)], k, byte);
      }
    pooled_ = slots_.size();
    index_t pinned = 0, last[offload_kinds] = {nowhere, nowhere, nowhere, nowhere};
    for (index_t t = 0; t < shape.count(); ++t) {
      const offload_tensor& tensor = shape.tensors[static_cast<std::size_t>(t)];
      const index_t bytes = offload_shape::slot_bytes(tensor.bytes);
      kind_.push_back(tensor.kind);
      before_[static_cast<std::size_t>(t)] = last[tensor.kind];
      if (plan.is_parked(t)) last[tensor.kind] = t;
      for (int lane = 0; lane < in_flight_; ++lane) {
        const auto i = static_cast<std::size_t>(t * in_flight_ + lane);
        if (plan.is_parked(t)) {
          place_[i] = pinned;
          pinned += bytes;
        } else {
          items_[i].slot = static_cast<index_t>(slots_.size());
          add(bytes, tensor.kind, byte);
          slots_.back().own = true;
        }
      }
    }
  }

  item_type& of(index_t i) { return items_[static_cast<std::size_t>(i)]; }
  const item_type& of(index_t i) const { return items_[static_cast<std::size_t>(i)]; }
  slot_type& at(index_t s) { return slots_[static_cast<std::size_t>(s)]; }
  const slot_type& at(index_t s) const { return slots_[static_cast<std::size_t>(s)]; }
  index_t tensor_of(index_t i) const { return i / in_flight_; }
  index_t place(index_t i) const { return place_[static_cast<std::size_t>(i)]; }
  bool parks(index_t i) const { return place(i) != nowhere; }

  // An item of the tensor that nobody has; nowhere if all are taken.
  index_t open(index_t tensor) {
    for (index_t i = tensor * in_flight_; i < (tensor + 1) * in_flight_; ++i)
      if (!of(i).open && of(i).scope == access::none) {
        of(i).open = true;
        return i;
      }
    return nowhere;
  }
  // Its contents are wanted no more; a scope that is open still has the slot until it closes.
  void close(index_t i) {
    of(i).open = false;
    if (of(i).scope == access::none) forget(i);
  }
  void forget(index_t i) {
    item_type& it = of(i);
    it.written = it.read = it.ahead = it.restored = false;
    if (!parks(i) || it.slot == nowhere) return;
    at(it.slot).holder = nowhere;
    it.slot = nowhere;
  }
  void was_written(index_t i) {
    of(i).written = true;
    newest(i) = i;
  }
  void touch(index_t i) { at(of(i).slot).touched = ++time_; }

  // The slot that i should take, empty or of another item: an empty one, or the one that was touched longest
  // ago, last of all one that is next in turn. `spare`: such a one is not taken. nowhere: all are in use.
  index_t slot_for(index_t i, bool spare) const {
    index_t best = nowhere;
    std::uint64_t best_rank[2] = {3, 0};
    for (index_t s = 0; s < static_cast<index_t>(pooled_); ++s) {
      const slot_type& candidate = at(s);
      if (candidate.kind != kind_of(i)) continue;
      std::uint64_t rank = 0;
      if (candidate.holder != nowhere) {
        const item_type& holder = of(candidate.holder);
        if (holder.scope != access::none || (spare && holder.ahead)) continue;
        rank = holder.ahead ? 2 : 1;
      }
      if (rank > best_rank[0] || (rank == best_rank[0] && candidate.touched >= best_rank[1])) continue;
      best = s, best_rank[0] = rank, best_rank[1] = candidate.touched;
    }
    return best;
  }
  // Who had it is parked from here on. Returns whether that one had come back for nothing.
  bool give(index_t s, index_t i) {
    slot_type& to = at(s);
    bool for_nothing = false;
    if (to.holder != nowhere) {
      item_type& gone = of(to.holder);
      for_nothing = gone.restored && to.unread;
      gone.slot = nowhere;
      gone.ahead = gone.restored = false;
    }
    to.holder = i;
    of(i).slot = s;
    touch(i);
    return for_nothing;
  }
  int on_device(int kind) const {
    int n = 0;
    for (std::size_t s = 0; s < pooled_; ++s) n += slots_[s].kind == kind && slots_[s].holder != nowhere;
    return n;
  }
  int kind_of(index_t i) const { return kind_[static_cast<std::size_t>(tensor_of(i))]; }

  // Whether reading i is part of a backward: it has been read before, or another one of its micro-batch was
  // written after it.
  bool turned_round(index_t i) { return of(i).read || newest(i) != i; }
  // The one of the same micro-batch and kind whose turn comes after i in backward; nowhere at the end.
  index_t next(index_t i) const {
    const index_t t = before_[static_cast<std::size_t>(tensor_of(i))];
    return t == nowhere ? nowhere : t * in_flight_ + i % in_flight_;
  }
  int ahead() const { return ahead_; }

 private:
  void add(index_t bytes, int kind, index_t& first) {
    slots_.emplace_back();
    slots_.back().first_byte = first;
    slots_.back().bytes = bytes;
    slots_.back().kind = kind;
    first += bytes;
  }
  index_t& newest(index_t i) {
    return newest_[static_cast<std::size_t>(kind_of(i) * in_flight_ + i % in_flight_)];
  }

  int in_flight_, ahead_;
  std::vector<item_type> items_; // by tensor and micro-batch
  std::vector<index_t> place_;   // of each in the slab
  std::vector<index_t> before_;  // by tensor: the one before it of its kind that is parked
  std::vector<index_t> newest_;  // by kind and micro-batch
  std::vector<int> kind_;        // by tensor
  std::vector<slot_type> slots_;
  std::size_t pooled_ = 0; // the first ones are shared
  std::uint64_t time_ = 0;
};

} // namespace plateau::inline v0::detail::offload
