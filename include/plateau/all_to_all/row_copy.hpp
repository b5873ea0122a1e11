// SPDX-License-Identifier: Apache-2.0
//
// One row copied by a team, bit for bit, of elements of any trivially copyable type.
//
// On the host, rows whose addresses differ by whole vectors take one memcpy, which for some KiB does not read
// the lines that it is about to overwrite. Where they differ otherwise it is slow (rows of 4 KiB that lie in
// no cache, glibc 2.36 on an AMD EPYC, bytes read and written: 27 GB/s alike, 17 GB/s otherwise), and a loop
// over lines is faster, with 24 GB/s. Non-temporal stores would gain a tenth where nothing reads the rows
// soon and lose half where the exchange finds them in the cache; and they would have to be fenced row by row,
// as a kernel is told of no end but its row's.
//
// A GPU needs wide accesses: the team moves the widest words, up to 16 bytes, at which both rows are aligned
// alike, and the ends that are no whole word apart.
#pragma once

#include <plateau/config.hpp>
#include <plateau/team.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace plateau::inline v0::detail::dispatch {

// to[i] = from[i] for words of Size bytes, both aligned at that.
template <std::size_t Size, class Team>
PLATEAU_HD void copy_words(Team& team, const unsigned char* from, unsigned char* to, index_t words) {
  constexpr index_t size = Size;
  team.for_each(words, [=](index_t i) {
    // By memcpy, as any other type of a word would be an alias of the elements.
    std::memcpy(__builtin_assume_aligned(to + i * size, Size),
                __builtin_assume_aligned(from + i * size, Size), Size);
  });
}

// The widest words first. Every member finds the same width.
template <std::size_t Size, std::size_t Alignment, class Team>
PLATEAU_HD void copy_widest(Team& team, const unsigned char* from, unsigned char* to, index_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(from), b = reinterpret_cast<std::uintptr_t>(to);
  if constexpr (Size > Alignment) {
    if ((a ^ b) % Size != 0) return copy_widest<Size / 2, Alignment>(team, from, to, bytes);
    const index_t before = static_cast<index_t>((Size - a % Size) % Size);
    const index_t head = before < bytes ? before : bytes, words = (bytes - head) / index_t{Size};
    copy_words<Size>(team, from + head, to + head, words);
    const index_t tail = head + words * index_t{Size};
    if (head > 0) copy_words<Alignment>(team, from, to, head / index_t{Alignment});
    if (tail < bytes)
      copy_words<Alignment>(team, from + tail, to + tail, (bytes - tail) / index_t{Alignment});
  } else {
    copy_words<Size>(team, from, to, bytes / index_t{Size});
  }
}

// to[i] = from[i] for i in [0, n). The rows do not overlap, and may be null when n is 0.
template <class Team, class T> PLATEAU_HD void copy_row(Team& team, const T* from, T* to, index_t n) {
  static_assert(std::is_trivially_copyable_v<T>, "plateau dispatch: rows are of a trivially copyable type");
  const index_t bytes = n * index_t{sizeof(T)};
  const auto* source = reinterpret_cast<const unsigned char*>(from);
  auto* target = reinterpret_cast<unsigned char*>(to);
  if constexpr (std::is_base_of_v<serial_team, Team>) {
    constexpr index_t line = 64, vector = 32;
    const auto apart = reinterpret_cast<std::uintptr_t>(from) ^ reinterpret_cast<std::uintptr_t>(to);
    const index_t lines = apart % vector == 0 ? 0 : bytes / line, done = lines * line;
    team.for_each(lines, [=](index_t i) { std::memcpy(target + i * line, source + i * line, line); });
    if (done < bytes) std::memcpy(target + done, source + done, static_cast<std::size_t>(bytes - done));
  } else {
    constexpr std::size_t widest = 16, alignment = alignof(T) < widest ? alignof(T) : widest;
    copy_widest<widest, alignment>(team, source, target, bytes);
  }
}

} // namespace plateau::inline v0::detail::dispatch
