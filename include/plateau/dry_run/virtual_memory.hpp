// SPDX-License-Identifier: Apache-2.0
//
// Memory of a dry run: addresses without bytes. Every allocation gets addresses that were never used before,
// so that a stale pointer is known as one, and that no machine has, so that touching them is a crash and not
// a wrong number. A gap between allocations makes running past an end visible.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/tag.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace plateau::inline v0::dry {

// Not canonical on x86-64 and AArch64: bits 48 to 63 differ from bit 47. Each space has 2^56 addresses.
inline constexpr std::uintptr_t first_device_address = 0x4d00'0000'0000'0000U,
                                first_host_address = 0x4800'0000'0000'0000U;
inline constexpr std::size_t addresses_of_a_space = std::size_t{1} << 56;

// What a virtual memory tells: the recorder of its rank.
struct memory_listener {
  virtual void allocated(std::uintptr_t address, std::size_t bytes, const char* space, tag t) = 0;
  virtual void freed(std::uintptr_t address) noexcept = 0;
  virtual void retired(std::uintptr_t address, std::size_t bytes) noexcept = 0;

  // What was never given out begins here. All memories of a rank share it, those of a second backend too.
  std::uintptr_t next_device_address = first_device_address, next_host_address = first_host_address;

 protected:
  ~memory_listener() = default;
};

// A memory_resource; put plateau::metered in front.
template <class Space> class virtual_memory {
 public:
  using space = Space;

  // The listener must outlive the memory.
  explicit virtual_memory(memory_listener& listener) : listener_(&listener) {}

  // Throws backend_error when the addresses are used up: that takes a size that was computed wrongly.
  void* allocate(std::size_t bytes, std::size_t alignment, tag t) {
    if (bytes == 0) return nullptr;
    std::uintptr_t& next = is_device ? listener_->next_device_address : listener_->next_host_address;
    const std::uintptr_t at = (next + alignment - 1) / alignment * alignment;
    if (at > end - gap || bytes > end - gap - at)
      throw backend_error("plateau: a dry run has no " + std::to_string(bytes) + " addresses left in its " +
                          Space::name + " memory");
    next = at + bytes + gap;
    listener_->allocated(at, bytes, Space::name, t);
    return reinterpret_cast<void*>(at);
  }
  void deallocate(void* p, std::size_t, std::size_t, tag) noexcept {
    if (p != nullptr) listener_->freed(reinterpret_cast<std::uintptr_t>(p));
  }
  void retire(void* p, std::size_t bytes) noexcept {
    if (bytes != 0) listener_->retired(reinterpret_cast<std::uintptr_t>(p), bytes);
  }

 private:
  static_assert(sizeof(std::uintptr_t) == 8, "plateau: a dry run needs 64-bit addresses");
  static constexpr bool is_device = std::is_same_v<Space, device_space>;
  static constexpr std::uintptr_t end =
      (is_device ? first_device_address : first_host_address) + addresses_of_a_space;
  static constexpr std::size_t gap = 4096;

  memory_listener* listener_;
};

} // namespace plateau::inline v0::dry
