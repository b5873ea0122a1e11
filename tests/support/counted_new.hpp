// SPDX-License-Identifier: Apache-2.0
//
// Replaces the global operator new by one that counts, so that a test can say "nothing is allocated here" of
// all threads. A replacement is the program's: include this in the one source file of a test. nvcc takes
// operator new for device code as well, so a test of its own has a second source for the host's compiler, and
// the two share the counter. Requests of a TiB and more are refused unasked, since sanitizers end the program
// at them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace counted_new {

inline std::atomic<std::uint64_t> calls{0};

inline void* allocate(std::size_t bytes, std::size_t alignment) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (bytes >= std::size_t{1} << 40) throw std::bad_alloc();
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(bytes == 0 ? 1 : bytes)
                : std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

} // namespace counted_new

#ifndef __CUDACC__
// Not inline: g++ would see a `free` of what comes from a `new` that it has not looked into. The nothrow ones
// too, which a sanitizer would bring along otherwise.
[[gnu::noinline]] void* operator new(std::size_t n) { return counted_new::allocate(n, 1); }
[[gnu::noinline]] void* operator new[](std::size_t n) { return counted_new::allocate(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) {
  return counted_new::allocate(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t n, std::align_val_t a) {
  return counted_new::allocate(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  try {
    return counted_new::allocate(n, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif
