// SPDX-License-Identifier: Apache-2.0
//
// Copies in stream order. Those that touch the device are the copy engines' (cudaMemcpyAsync). Between two
// places of the host the same call would make the host wait for everything before it, so there the copy is
// host code in the stream.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/stream.hpp>
#include <plateau/view.hpp>

#include <cuda_runtime.h>

#include <cstring>
#include <limits>
#include <type_traits>

namespace plateau::inline v0::cudart {

namespace detail {
template <class From, class To> constexpr cudaMemcpyKind direction() {
  constexpr bool from_device = std::is_same_v<From, device_space>,
                 to_device = std::is_same_v<To, device_space>;
  if constexpr (std::is_same_v<From, host_space> && to_device)
    return cudaMemcpyHostToDevice;
  else if constexpr (from_device && std::is_same_v<To, host_space>)
    return cudaMemcpyDeviceToHost;
  else if constexpr (from_device && to_device)
    return cudaMemcpyDeviceToDevice;
  else
    return cudaMemcpyDefault; // a space of the caller's, by its address
}
template <class From, class To>
inline constexpr bool on_host = std::is_same_v<From, host_space>&& std::is_same_v<To, host_space>;
} // namespace detail

// Equal lengths, not 0. Memory of the host is pinned: pageable memory would be read at the call.
template <class T, class S, class U, class R>
void copy(stream& s, view<T, S> from, view<U, R> to, source_line at) {
  if constexpr (detail::on_host<S, R>)
    s.push([from, to] { std::memcpy(to.p, from.p, to.bytes()); }, at);
  else
    check(cudaMemcpyAsync(to.p, from.p, to.bytes(), detail::direction<S, R>(), s.handle()), "cudaMemcpyAsync",
          at.file, at.line);
}
// Equal extents, not 0.
template <class T, class S, class U, class R>
void copy(stream& s, tile<T, S> from, tile<U, R> to, source_line at) {
  constexpr index_t widest = std::numeric_limits<std::int32_t>::max(); // the pitch that every device takes
  constexpr auto size = static_cast<index_t>(sizeof(U));
  if (from.contiguous() && to.contiguous()) {
    copy(s, view<T, S>{from.p, from.rows * from.cols}, view<U, R>{to.p, to.rows * to.cols}, at);
  } else if constexpr (detail::on_host<S, R>) {
    s.push(
        [from, to] {
          const std::size_t row_bytes = static_cast<std::size_t>(to.cols) * sizeof(U);
          for (index_t r = 0; r < to.rows; ++r) std::memcpy(to.row(r), from.row(r), row_bytes);
        },
        at);
  } else if (from.ld <= widest / size && to.ld <= widest / size) {
    const auto bytes = [](index_t n) { return static_cast<std::size_t>(n) * sizeof(U); };
    check(cudaMemcpy2DAsync(to.p, bytes(to.ld), from.p, bytes(from.ld), bytes(to.cols),
                            static_cast<std::size_t>(to.rows), detail::direction<S, R>(), s.handle()),
          "cudaMemcpy2DAsync", at.file, at.line);
  } else {
    for (index_t r = 0; r < to.rows; ++r)
      copy(s, view<T, S>{from.row(r), from.cols}, view<U, R>{to.row(r), to.cols}, at);
  }
}

} // namespace plateau::inline v0::cudart
