// SPDX-License-Identifier: Apache-2.0
//
// What reductions of blocks and warps share: a slot for each member, the order in which they are joined, and
// the value that members get who are promised none.
#pragma once

#include <cstring>
#include <type_traits>

namespace cuda_stand_in {

// As memory of a block it has no constructor to run. Every member writes its slot, and member 0 reads them
// all: who uses the storage again without a barrier spoils a slot that is still to be read.
template <class T, int Members> struct team_storage {
  static_assert(std::is_trivially_copyable_v<T>, "what a team reduces is copied byte by byte");
  alignas(T) unsigned char slots[Members][sizeof(T)];

  void put(unsigned member, const T& value) { std::memcpy(slots[member], &value, sizeof(T)); }
  T get(unsigned member) const {
    // Through a union, since T may have no default constructor.
    union holder {
      unsigned char none;
      T value;
      holder() : none(0) {}
      ~holder() {}
    } h;
    std::memcpy(static_cast<void*>(&h), slots[member], sizeof(T));
    return h.value;
  }
};

// A value that shows when it is used: the bytes of new device memory.
template <class T> T no_result() {
  team_storage<T, 1> s;
  std::memset(s.slots, 0xfe, sizeof s.slots);
  return s.get(0);
}

} // namespace cuda_stand_in
