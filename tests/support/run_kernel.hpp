// SPDX-License-Identifier: Apache-2.0
//
// Runs a kernel the way tests want it: at a given level of vectors and, where that is the baseline, first
// with every thread of a wide team at once, which must leave the same bits in everything the kernel may
// write. Built with the thread sanitizer, that second run also finds a missing barrier or a write outside
// `for_each` and `once`.
//
// Compiled for CUDA, the same calls run the kernel on a GPU (tests/cuda/run_kernel.hpp), so that one test of
// a kernel is the test of it everywhere.
#pragma once

#if defined(__CUDACC__)
#include "cuda/run_kernel.hpp"
#else

#include "support/reach.hpp"

#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/wide_team.hpp>
#include <plateau/view.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace support {

using plateau::index_t;

// Baseline first, then what this machine has.
inline std::vector<plateau::cpu_level> cpu_levels() {
  std::vector<plateau::cpu_level> out;
  for (const auto level :
       {plateau::cpu_level::baseline, plateau::cpu_level::avx2, plateau::cpu_level::avx512})
    if (plateau::cpu_supports(level)) out.push_back(level);
  return out;
}

namespace detail {

// The bytes behind all views of non-const, from their first element to their last.
class writable_bytes {
 public:
  template <class... Args> explicit writable_bytes(const Args&... args) { (add(args), ...); }

  std::vector<std::vector<std::byte>> save() const {
    std::vector<std::vector<std::byte>> out;
    for (const part& p : parts_) out.emplace_back(p.first, p.first + p.count);
    return out;
  }
  void restore(const std::vector<std::vector<std::byte>>& saved) const {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (parts_[i].count > 0) std::memcpy(parts_[i].first, saved[i].data(), parts_[i].count);
  }

 private:
  struct part {
    std::byte* first;
    std::size_t count;
  };
  template <class Arg> void add(const Arg& arg) {
    if constexpr (plateau::is_view<Arg>)
      if constexpr (!std::is_const_v<typename Arg::element_type>)
        parts_.push_back({reinterpret_cast<std::byte*>(arg.p),
                          static_cast<std::size_t>(reach(arg)) * sizeof(typename Arg::element_type)});
  }
  std::vector<part> parts_;
};

template <class Wide, class Narrow, class... Args>
void run(plateau::cpu_level level, Wide wide, Narrow narrow, const Args&... args) {
  if (level != plateau::cpu_level::baseline) return narrow();
  const writable_bytes memory(args...);
  const auto before = memory.save();
  wide();
  const auto of_wide_team = memory.save();
  memory.restore(before);
  narrow();
  const bool same_bits = memory.save() == of_wide_team;
  CHECK_MESSAGE(same_bits, "the wide team leaves other bits than one thread");
}

} // namespace detail

template <class Kernel, class... Args>
void run_rows(plateau::cpu_level level, index_t rows, Kernel kernel, Args... args) {
  detail::run(
      level, [&] { plateau::host::run_rows_wide(index_t{0}, rows, kernel, args...); },
      [&] { plateau::host::run_rows(level, index_t{0}, rows, kernel, args...); }, args...);
}

template <class Kernel, class... Args>
void run_elements(plateau::cpu_level level, index_t n, Kernel kernel, Args... args) {
  detail::run(
      level, [&] { plateau::host::run_elements_wide(index_t{0}, n, kernel, args...); },
      [&] { plateau::host::run_elements(level, index_t{0}, n, kernel, args...); }, args...);
}

// Elements [first, last) alone, as one of several threads or blocks has them, by one thread.
template <class Kernel, class... Args>
void run_part(plateau::cpu_level level, index_t first, index_t last, Kernel kernel, Args... args) {
  plateau::host::run_elements(level, first, last, kernel, args...);
}

} // namespace support

#endif
