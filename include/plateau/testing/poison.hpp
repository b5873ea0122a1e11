// SPDX-License-Identifier: Apache-2.0
//
// The memory that the operations of audited backends may touch at all, and the part of it that one operation
// has declared: while it runs, the address sanitizer stops the program at the first access to the rest. Where
// the sanitizer is not compiled in, nothing is stopped.
//
// The sanitizer knows eight bytes at a time and, of eight, only how many of the first may be touched. So up
// to seven bytes before a range that begins at an odd address stay open, while its end is exact: give parts
// that are to be told apart addresses that are multiples of 8, as buffers and workspaces do.
#pragma once

#include <plateau/config.hpp>
#include <plateau/testing/operation.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define PLATEAU_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLATEAU_POISONS 1
#endif
#endif
#if defined(PLATEAU_POISONS)
#include <sanitizer/asan_interface.h>
#endif

namespace plateau::inline v0::testing {

class watched_memory {
 public:
#if defined(PLATEAU_POISONS)
  static constexpr bool stops = true;
#else
  static constexpr bool stops = false;
#endif

  void add(const void* p, std::size_t bytes) {
    if (bytes != 0) parts_[reinterpret_cast<std::uintptr_t>(p)] = bytes;
  }
  void remove(const void* p) { parts_.erase(reinterpret_cast<std::uintptr_t>(p)); }

  // For as long as it lives, of all watched memory only these pieces may be touched.
  class only {
   public:
    only(const watched_memory& memory, const std::vector<piece>& pieces) : memory_(memory) {
      for (const auto& [address, bytes] : memory_.parts_) poison(address, bytes);
      for (const piece& p : pieces) memory_.open(p);
    }
    only(const only&) = delete;
    only& operator=(const only&) = delete;
    ~only() {
      for (const auto& [address, bytes] : memory_.parts_) unpoison(address, bytes);
    }

   private:
    const watched_memory& memory_;
  };

 private:
  // The part of it that is watched: what lies beyond the end of an allocation stays shut.
  void open(const piece& p) const {
    auto it = parts_.upper_bound(p.address);
    if (it != parts_.begin()) --it;
    for (; it != parts_.end() && it->first < p.end(); ++it) {
      const std::uintptr_t begin = std::max(it->first, p.address),
                           end = std::min(it->first + it->second, p.end());
      if (begin < end) unpoison(begin, end - begin);
    }
  }
  static void poison([[maybe_unused]] std::uintptr_t address, [[maybe_unused]] std::size_t bytes) {
#if defined(PLATEAU_POISONS)
    __asan_poison_memory_region(reinterpret_cast<const void*>(address), bytes);
#endif
  }
  static void unpoison([[maybe_unused]] std::uintptr_t address, [[maybe_unused]] std::size_t bytes) {
#if defined(PLATEAU_POISONS)
    __asan_unpoison_memory_region(reinterpret_cast<const void*>(address), bytes);
#endif
  }

  std::map<std::uintptr_t, std::size_t> parts_;
};

} // namespace plateau::inline v0::testing
#undef PLATEAU_POISONS
