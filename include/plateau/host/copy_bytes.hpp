// SPDX-License-Identifier: Apache-2.0
//
// Copies between buffers of ranks that are threads. A large copy uses non-temporal stores: an ordinary store
// first reads the line that it is about to overwrite, a third of the traffic, and pushes out of the cache
// what the kernels beside it need.
#pragma once

#include <plateau/config.hpp>

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace plateau::inline v0::host {

// From this size on a copy is taken to be too large for its reader to find it in a cache.
inline constexpr std::size_t streaming_copy_bytes = std::size_t{1} << 20;

// Copies n bytes with stores that bypass the caches. The buffers must not overlap; any alignment. The bytes
// are visible to whoever synchronises with this thread afterwards.
inline void copy_bytes_streaming(void* to, const void* from, std::size_t n) {
#if defined(__SSE2__)
  constexpr std::size_t line = 64;
  auto* d = static_cast<unsigned char*>(to);
  auto* s = static_cast<const unsigned char*>(from);
  if (n < 4 * line) {
    if (n != 0) std::memcpy(d, s, n);
    return;
  }
  const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(d) % line) % line;
  std::memcpy(d, s, head);
  d += head;
  s += head;
  n -= head;
  for (; n >= line; n -= line, d += line, s += line) {
    const auto* f = reinterpret_cast<const __m128i*>(s);
    auto* t = reinterpret_cast<__m128i*>(d);
    const __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1);
    const __m128i c = _mm_loadu_si128(f + 2), e = _mm_loadu_si128(f + 3);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, e);
  }
  std::memcpy(d, s, n);
  _mm_sfence(); // non-temporal stores are not ordered by an unlock
#else
  if (n != 0) std::memcpy(to, from, n);
#endif
}

// Copies n bytes; large ones by non-temporal stores. Null pointers are legal when n is 0.
inline void copy_bytes(void* to, const void* from, std::size_t n) {
  if (n >= streaming_copy_bytes)
    copy_bytes_streaming(to, from, n);
  else if (n != 0)
    std::memcpy(to, from, n);
}

} // namespace plateau::inline v0::host
