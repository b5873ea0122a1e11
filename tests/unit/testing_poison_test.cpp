// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/poison.hpp>

#include <doctest/doctest.h>

#include <vector>

// g++ has a macro for it, clang a feature.
#if defined(__SANITIZE_ADDRESS__)
#define CAN_ASK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAN_ASK 1
#endif
#endif
#if defined(CAN_ASK)
#include <sanitizer/asan_interface.h>
#endif

using plateau::testing::piece;
using plateau::testing::watched_memory;

// What the sanitizer would stop can be asked without being stopped.
TEST_CASE("watched_memory: only the named pieces are open, and everything is afterwards") {
  alignas(16) static unsigned char a[64], b[64];
  watched_memory memory;
  memory.add(a, sizeof a);
  memory.add(b, 32); // the rest of it is not watched
  [[maybe_unused]] const auto shut = [](const unsigned char* p) {
#if defined(CAN_ASK)
    return __asan_address_is_poisoned(p) != 0;
#else
    return p == nullptr;
#endif
  };
  const auto address = [](const unsigned char* p) { return reinterpret_cast<std::uintptr_t>(p); };
  {
    const watched_memory::only these(memory, {piece{address(a + 8), 20}, piece{address(b + 24), 16}});
    if (watched_memory::stops) {
      CHECK(shut(a + 7));
      CHECK_FALSE(shut(a + 8));
      CHECK_FALSE(shut(a + 27));
      CHECK(shut(a + 28)); // the end is exact
      CHECK(shut(b + 23));
      CHECK_FALSE(shut(b + 24));
    }
    CHECK_FALSE(shut(b + 40));
  }
  for (const unsigned char* p = a; p < a + 64; ++p) CHECK_FALSE(shut(p));
  memory.remove(a);
  const watched_memory::only none(memory, {});
  CHECK_FALSE(shut(a));
  CHECK(shut(b) == watched_memory::stops);
}
