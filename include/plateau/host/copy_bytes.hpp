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

// Copies n bytes with stores that bypass the caches, as one of several copies: an unlock does not order such
// stores, so finish_streaming() comes after the last of them and before anyone is told. A fence after each
// row of 4 KiB would cost as much as half the row. The buffers must not overlap; any alignment.
inline void stream_bytes(void* to, const void* from, std::size_t n) {
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
  const auto copy_line = [&] {
    const auto* f = reinterpret_cast<const __m128i*>(s);
    auto* t = reinterpret_cast<__m128i*>(d);
    const __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1);
    const __m128i c = _mm_loadu_si128(f + 2), e = _mm_loadu_si128(f + 3);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, e);
    n -= line;
    d += line;
    s += line;
  };
  // The processor's own prefetching waits behind the streaming stores: asked for 2 KiB ahead, and past the
  // caches that others use, a long copy runs an eighth faster. Never beyond the buffer.
  constexpr std::size_t ahead = 2048;
  while (n >= ahead + line) {
    _mm_prefetch(reinterpret_cast<const char*>(s) + ahead, _MM_HINT_NTA);
    copy_line();
  }
  while (n >= line) copy_line();
  std::memcpy(d, s, n);
#else
  if (n != 0) std::memcpy(to, from, n);
#endif
}
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// One such copy. The bytes are visible to whoever synchronises with this thread afterwards.
inline void copy_bytes_streaming(void* to, const void* from, std::size_t n) {
  stream_bytes(to, from, n);
  finish_streaming();
}

// Copies n bytes; large ones by non-temporal stores. Null pointers are legal when n is 0.
inline void copy_bytes(void* to, const void* from, std::size_t n) {
  if (n >= streaming_copy_bytes)
    copy_bytes_streaming(to, from, n);
  else if (n != 0)
    std::memcpy(to, from, n);
}

} // namespace plateau::inline v0::host
