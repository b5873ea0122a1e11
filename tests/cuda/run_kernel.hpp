// SPDX-License-Identifier: Apache-2.0
//
// Runs a kernel on the GPU for tests whose tensors lie in ordinary host memory: what the views cover is
// copied to the device, byte offsets within 256 kept, and copied back afterwards. Views of the same memory
// stay views of the same memory. Around and between what was copied lies a pattern, and neither that nor what
// the kernel may only read may have changed.
#pragma once

#include "support/reach.hpp"

#include <plateau/cuda.hpp>

#include <plateau/access.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace support {

// There is one way to run a kernel here; the level names it in messages only.
inline std::vector<plateau::cpu_level> cpu_levels() { return {plateau::cpu_level::baseline}; }

// The host memory that the views of one launch cover, as ranges that do not overlap, and where each lies in
// one block of device memory.
class mirrored_memory {
 public:
  static constexpr std::size_t gap = 256;
  static constexpr unsigned char pattern = 0xa5;

  template <class... Args> explicit mirrored_memory(const Args&... args) {
    (add(args), ...);
    std::sort(ranges_.begin(), ranges_.end(),
              [](const range& a, const range& b) { return a.begin < b.begin; });
    std::vector<range> joined;
    for (const range& each : ranges_) {
      if (joined.empty() || joined.back().end <= each.begin) {
        joined.push_back(each);
        continue;
      }
      joined.back().end = std::max(joined.back().end, each.end);
      joined.back().written = joined.back().written || each.written;
    }
    ranges_ = std::move(joined);
    for (range& each : ranges_) {
      each.offset = (size_ + gap - 1) / gap * gap + each.begin % gap;
      size_ = each.offset + (each.end - each.begin);
    }
    size_ += gap;
  }

  std::size_t size() const { return size_; }

  // The image of the host's memory, with the pattern where there is nothing.
  void store(unsigned char* image) const {
    std::memset(image, pattern, size_);
    for (const range& each : ranges_)
      std::memcpy(image + each.offset, reinterpret_cast<const void*>(each.begin), each.end - each.begin);
  }
  // Back from an image. `before` is what it was.
  void load(const unsigned char* image, const unsigned char* before) const {
    bool kept = true;
    std::size_t checked = 0; // everything in front of it
    for (const range& each : ranges_) {
      const std::size_t bytes = each.end - each.begin;
      kept = kept && same(image, before, checked, each.offset);
      if (each.written)
        std::memcpy(reinterpret_cast<void*>(each.begin), image + each.offset, bytes);
      else
        kept = kept && same(image, before, each.offset, each.offset + bytes);
      checked = each.offset + bytes;
    }
    kept = kept && same(image, before, checked, size_);
    CHECK_MESSAGE(kept, "the kernel wrote outside what it may write");
  }
  template <class T> T* moved(T* host, unsigned char* block) const {
    const auto at = reinterpret_cast<std::uintptr_t>(host);
    for (const range& each : ranges_)
      if (at >= each.begin && at < each.end)
        return reinterpret_cast<T*>(block + each.offset + (at - each.begin));
    return nullptr; // an empty view
  }

 private:
  struct range {
    std::uintptr_t begin, end;
    bool written;
    std::size_t offset = 0;
  };
  template <class Arg> void add(const Arg& arg) {
    if constexpr (plateau::is_view<Arg>) {
      using element = typename Arg::element_type;
      const auto begin = reinterpret_cast<std::uintptr_t>(arg.p);
      const auto bytes = static_cast<std::size_t>(reach(arg)) * sizeof(element);
      if (bytes > 0) ranges_.push_back({begin, begin + bytes, !std::is_const_v<element>});
    }
  }
  static bool same(const unsigned char* a, const unsigned char* b, std::size_t first, std::size_t last) {
    return first >= last || std::memcmp(a + first, b + first, last - first) == 0;
  }

  std::vector<range> ranges_;
  std::size_t size_ = 0;
};

// One backend for the whole program. CUDA has been initialised when it is complete, so it goes before CUDA
// does.
class device_runner {
  using backend_type = plateau::cuda_backend;

 public:
  static device_runner& instance() {
    static device_runner the_one;
    return the_one;
  }

  template <class Grid, class Kernel, class... Args> void run(Grid grid, Kernel kernel, const Args&... args) {
    const mirrored_memory memory(args...);
    const auto bytes = static_cast<index_t>(memory.size());
    reserve(bytes);
    const auto staged = pinned_.all().sub(0, bytes);
    const auto block = device_.all().sub(0, bytes);
    memory.store(staged.p);
    before_.assign(staged.p, staged.p + bytes);
    backend_.copy(stream_, plateau::in(staged), plateau::out(block));
    backend_.launch(stream_, grid, kernel, tagged(memory, block.p, args)...);
    backend_.copy(stream_, plateau::in(block), plateau::out(staged));
    backend_.wait(backend_.record(stream_));
    memory.load(staged.p, before_.data());
  }

 private:
  void reserve(index_t bytes) {
    if (device_.all().n >= bytes) return;
    const index_t enough = std::max<index_t>(2 * bytes, 1 << 20);
    device_ = {backend_.device(), enough, plateau::tag::other};
    pinned_ = {backend_.pinned(), enough, plateau::tag::other};
  }
  template <class Arg>
  static auto tagged(const mirrored_memory& memory, unsigned char* block, const Arg& arg) {
    if constexpr (plateau::is_view<Arg>) {
      Arg there = arg;
      there.p = memory.moved(arg.p, block);
      if constexpr (std::is_const_v<typename Arg::element_type>)
        return plateau::in(there);
      else
        return plateau::inout(there);
    } else {
      return arg;
    }
  }

  backend_type backend_;
  plateau::device_buffer<unsigned char, backend_type> device_;
  plateau::pinned_buffer<unsigned char, backend_type> pinned_;
  std::vector<unsigned char> before_;
  backend_type::stream stream_ = backend_.make_stream("tests");
};

template <class Kernel, class... Args>
void run_rows(plateau::cpu_level, index_t rows, Kernel kernel, Args... args) {
  device_runner::instance().run(plateau::rows{rows}, kernel, args...);
}
template <class Kernel, class... Args>
void run_elements(plateau::cpu_level, index_t n, Kernel kernel, Args... args) {
  device_runner::instance().run(plateau::elements{n}, kernel, args...);
}

// A launch that begins elsewhere than at 0, which no grid does.
template <class Kernel> struct shifted {
  Kernel kernel;
  index_t first;
  template <class... Args> PLATEAU_HD void operator()(index_t i, Args... args) const {
    kernel(first + i, args...);
  }
};
template <class Kernel, class... Args>
void run_part(plateau::cpu_level level, index_t first, index_t last, Kernel kernel, Args... args) {
  run_elements(level, last - first, shifted<Kernel>{kernel, first}, args...);
}

} // namespace support
