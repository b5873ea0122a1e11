// SPDX-License-Identifier: Apache-2.0
//
// Memory of the simulated devices, and pinned memory. What cudaMalloc returns is an address at which nobody
// may read or write, so that host code that touches device memory stops here as it does with a GPU; the bytes
// lie at a constant distance behind it. Copies and libraries translate, and a launch translates the pointers
// among a kernel's arguments. A kernel that reads a pointer from memory gets one that is not translated, and
// stops: the library under test has no such kernels.
//
// Every allocation ends at a page that nobody may touch (up to the 255 bytes that its size is rounded by),
// and is closed when it is freed, so that kernels that leave their memory are caught, too; addresses come
// back as late as possible. New memory is full of a pattern that makes a bad index and a bad number.
#pragma once

#include <cuda_stand_in/process.hpp>

#include <csignal>
#include <cstddef>
#include <cstring>

#include <sys/mman.h>
#include <sys/syscall.h>

namespace cuda_stand_in {

enum class memory_kind : unsigned char { pageable, device, pinned };

inline constexpr std::size_t page_bytes = 4096;
inline constexpr std::size_t arena_bytes = std::size_t{64} << 30; // of addresses
inline constexpr std::size_t size_step = 256;                     // alignment of what cudaMalloc gives
inline constexpr unsigned char fresh_byte = 0xfe, border_byte = 0xed;

struct allocation {
  char* address = nullptr; // the bytes themselves
  std::size_t bytes = 0;
  int device = 0;
  std::uint64_t number = 0; // counts the allocations of an arena
};

// Addresses for one kind of memory. `distance` is what lies between the address that is given out and the
// bytes: 0 for memory that the host may touch.
class arena {
 public:
  explicit arena(bool hidden) {
    if (hidden) shown_ = reserve();
    bytes_ = reserve();
    if (!hidden) shown_ = bytes_;
  }
  bool shows(const void* p) const { return inside(p, shown_); }
  bool holds(const void* p) const { return inside(p, bytes_); }
  // From an address that was given out to the bytes.
  char* real(const void* p) const { return bytes_ + (static_cast<const char*>(p) - shown_); }
  void* shown(const void* p) const { return shown_ + (static_cast<const char*>(p) - bytes_); }
  std::uintptr_t first() const { return reinterpret_cast<std::uintptr_t>(shown_); }
  std::ptrdiff_t distance() const { return bytes_ - shown_; }

  // The address to give out, or null where the machine has no more.
  void* allocate(std::size_t bytes, int device) {
    const std::size_t whole = round(bytes, size_step), pages = round(whole, page_bytes);
    std::unique_lock lock(mutex_);
    const std::size_t at = place(pages + page_bytes);
    if (at == nowhere) return nullptr;
    char* page = bytes_ + at;
    if (::mprotect(page, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
    char* p = page + (pages - whole);
    std::memset(page, border_byte, static_cast<std::size_t>(p - page));
    fill(p, bytes);
    std::memset(p + bytes, border_byte, whole - bytes);
    live_[at] = {p, bytes, device, ++made_};
    next_ = at + pages + page_bytes;
    return shown(p);
  }

  // The bytes of an allocation that begins at the given address; nothing where there is none.
  bool release(const void* given, allocation& gone) {
    std::unique_lock lock(mutex_);
    const auto found = at_or_before(real(given));
    if (found == live_.end() || found->second.address != real(given)) return false;
    gone = found->second;
    const std::size_t pages = round(round(gone.bytes, size_step), page_bytes);
    check_border(found->first, gone);
    ::madvise(bytes_ + found->first, pages, MADV_DONTNEED);
    ::mprotect(bytes_ + found->first, pages, PROT_NONE);
    live_.erase(found);
    return true;
  }

  // Whether `real` lies in a living allocation, and in which.
  bool find(const void* real, allocation& out) {
    std::shared_lock lock(mutex_);
    const auto found = at_or_before(real);
    if (found == live_.end()) return false;
    const char* p = static_cast<const char*>(real);
    if (p < found->second.address || p > found->second.address + found->second.bytes) return false;
    out = found->second;
    return true;
  }
  std::vector<allocation> living() {
    std::shared_lock lock(mutex_);
    std::vector<allocation> all;
    for (const auto& [at, a] : live_) all.push_back(a);
    return all;
  }
  std::size_t in_use(int device) {
    std::size_t sum = 0;
    for (const allocation& a : living()) sum += a.device == device ? a.bytes : 0;
    return sum;
  }

 private:
  static constexpr std::size_t nowhere = ~std::size_t{0};
  static std::size_t round(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }
  static bool inside(const void* p, const char* base) {
    const auto a = reinterpret_cast<std::uintptr_t>(p), b = reinterpret_cast<std::uintptr_t>(base);
    return a >= b && a - b < arena_bytes;
  }
  // The system call itself: a sanitizer would prepare for 64 GiB of data.
  static char* reserve() {
    const long p = ::syscall(SYS_mmap, nullptr, arena_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == -1) {
      std::fprintf(stderr, "cuda stand-in: no 64 GiB of addresses are left\n");
      std::abort();
    }
    return reinterpret_cast<char*>(p);
  }
  // The next gap of that size behind the newest allocation, and round again.
  std::size_t place(std::size_t bytes) const {
    for (std::size_t start : {next_, std::size_t{0}}) {
      std::size_t at = start;
      for (auto next = live_.lower_bound(at);; ++next) {
        const std::size_t end = next == live_.end() ? arena_bytes : next->first;
        if (at <= end && end - at >= bytes) return at;
        if (next == live_.end()) break;
        at = next->first + round(round(next->second.bytes, size_step), page_bytes) + page_bytes;
      }
    }
    return nowhere;
  }
  // Of much memory only the two ends: the rest would have to be found by the machine first, and is 0.
  static void fill(char* p, std::size_t bytes) {
    constexpr std::size_t much = std::size_t{4} << 20, end = std::size_t{1} << 20;
    std::memset(p, fresh_byte, bytes > much ? end : bytes);
    if (bytes > much) std::memset(p + bytes - end, fresh_byte, end);
  }
  using map = std::map<std::size_t, allocation>;
  map::iterator at_or_before(const void* real) {
    auto next = live_.upper_bound(static_cast<std::size_t>(static_cast<const char*>(real) - bytes_));
    return next == live_.begin() ? live_.end() : std::prev(next);
  }
  void check_border(std::size_t at, const allocation& a) const {
    const auto spoiled = [](const char* from, const char* to) {
      for (; from != to; ++from)
        if (static_cast<unsigned char>(*from) != border_byte) return true;
      return false;
    };
    const std::size_t whole = round(a.bytes, size_step);
    if (spoiled(bytes_ + at, a.address))
      report("something wrote in front of an allocation of " + std::to_string(a.bytes) + " bytes");
    if (spoiled(a.address + a.bytes, a.address + whole))
      report("something wrote behind an allocation of " + std::to_string(a.bytes) + " bytes");
  }

  mutable std::shared_mutex mutex_; // shared by readers, so that it orders no two operations
  map live_;                        // by the distance of the first page
  char* shown_ = nullptr;
  char* bytes_ = nullptr;
  std::size_t next_ = 0;
  std::uint64_t made_ = 0;
};

struct memories {
  arena device{true}, pinned{false};
};
inline memories& memory() {
  static auto* const one = new memories;
  return *one;
}

// Where a pointer points, as copies and libraries see it. An address of the bytes themselves, which a kernel
// may have written into an array of pointers, is the device's too.
struct place {
  memory_kind kind = memory_kind::pageable;
  char* real = nullptr;
  int device = -1;
  std::size_t left = ~std::size_t{0}; // bytes up to the end of the allocation
  bool living = true;
};
inline place locate(const void* p) {
  place where;
  where.real = const_cast<char*>(static_cast<const char*>(p));
  memories& m = memory();
  arena* in = nullptr;
  if (m.device.shows(p)) {
    in = &m.device;
    where.real = in->real(p);
    where.kind = memory_kind::device;
  } else if (m.device.holds(p)) {
    in = &m.device;
    where.kind = memory_kind::device;
  } else if (m.pinned.holds(p)) {
    in = &m.pinned;
    where.kind = memory_kind::pinned;
  } else {
    return where;
  }
  allocation a;
  where.living = in->find(where.real, a);
  where.left = where.living ? static_cast<std::size_t>(a.address + a.bytes - where.real) : 0;
  where.device = a.device;
  return where;
}
// Whether n bytes from there on may be touched; anything goes for ordinary memory and for no bytes.
inline bool reaches(const place& where, std::size_t n) { return n == 0 || (where.living && n <= where.left); }

// Translates the device addresses among the words of a kernel's arguments.
inline void translate_words(void* bytes, std::size_t n) {
  const arena& device = memory().device;
  char* p = static_cast<char*>(bytes);
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= n; at += sizeof(std::uintptr_t)) {
    std::uintptr_t word;
    std::memcpy(&word, p + at, sizeof word);
    if (word - device.first() >= arena_bytes) continue;
    word += static_cast<std::uintptr_t>(device.distance());
    std::memcpy(p + at, &word, sizeof word);
  }
}

} // namespace cuda_stand_in
