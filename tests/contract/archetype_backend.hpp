// SPDX-License-Identifier: Apache-2.0
//
// A backend that has what the concept asks for and nothing else: operations are templates with the exact
// signatures, streams cannot be copied, nor events, and memory has addresses that no host may touch, so that
// generic library code that relies on more does not compile, or crashes. Nothing runs on it; a fetch gives
// the dry answer. Its types are parameters, for near misses.
#pragma once

#include <plateau/access.hpp>
#include <plateau/counters.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/kernel.hpp>
#include <plateau/meter.hpp>
#include <plateau/resource.hpp>
#include <plateau/view.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

namespace archetypes {

namespace pl = plateau;
using pl::access_mode;
using pl::arg;
using pl::index_t;
using pl::on;
using pl::scratch_view;
using pl::tile;
using pl::tile_batch;
using pl::transpose;
using pl::view;

class stream {
 public:
  explicit stream(const char*) {}
  stream(stream&&) noexcept {}
  stream& operator=(stream&&) = delete;
};

class event {
 public:
  event() = default;
  event(event&&) noexcept {}
  event& operator=(event&&) noexcept { return *this; }
};

// Gives out addresses that are not canonical on any CPU of today.
template <class Space> class memory {
 public:
  using space = Space;

  void* allocate(std::size_t bytes, std::size_t, pl::tag t) {
    if (bytes == 0) return nullptr;
    meter_.charge(t, bytes);
    const std::uintptr_t at = next_;
    next_ += pl::aligned_bytes(bytes);
    return reinterpret_cast<void*>(at);
  }
  void deallocate(void* p, std::size_t bytes, std::size_t, pl::tag t) noexcept {
    if (p != nullptr) meter_.release(t, bytes);
  }
  pl::meter& meter() { return meter_; }
  void retire(void*, std::size_t) noexcept {}

 private:
  std::uintptr_t next_ = std::uintptr_t{0x2b} << 56;
  pl::meter meter_{Space::name};
};

template <class Stream = stream, class Event = event, class DeviceMemory = memory<pl::device_space>,
          class HostMemory = memory<pl::host_space>>
class basic_archetype_backend {
 public:
  using stream = Stream;
  using event = Event;
  using device_memory = DeviceMemory;
  using host_memory = HostMemory;

  static constexpr bool row_invariant = false;

  basic_archetype_backend() = default;
  basic_archetype_backend(const basic_archetype_backend&) = delete;
  basic_archetype_backend& operator=(const basic_archetype_backend&) = delete;

  DeviceMemory& device() { return device_; }
  HostMemory& pinned() { return pinned_; }
  void adopt(const void*, std::size_t, Stream&) {}

  Stream make_stream(const char* name) { return Stream(name); }
  Event record(Stream&) { return {}; }
  void wait(Stream&, const Event&) {}
  void wait(const Event&) {}

  template <class T, class S, class R>
  void copy(on<Stream>, arg<view<const T, S>, access_mode::read>, arg<view<T, R>, access_mode::write>) {}
  template <class T, class S, class R>
  void copy(on<Stream>, arg<tile<const T, S>, access_mode::read>, arg<tile<T, R>, access_mode::write>) {}

  template <class Kernel, class... Args> void launch(on<Stream>, pl::elements, Kernel, Args...) {
    pl::check_kernel<basic_archetype_backend, pl::elements, Kernel, Args...>();
  }
  template <class Kernel, class... Args> void launch(on<Stream>, pl::rows, Kernel, Args...) {
    pl::check_kernel<basic_archetype_backend, pl::rows, Kernel, Args...>();
  }

  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(transpose, transpose, index_t, index_t, index_t) {
    return 0;
  }
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<Stream>, transpose, transpose, float, arg<tile<const A>, access_mode::read>,
            arg<tile<const B>, access_mode::read>, float, arg<tile<C>, Mode>, scratch_view) {}
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<Stream>, transpose, transpose, float, arg<tile_batch<const A>, access_mode::read>,
            arg<tile_batch<const B>, access_mode::read>, float, arg<tile_batch<C>, Mode>, scratch_view) {}
  template <class A, class B, class C>
  void grouped_gemm(on<Stream>, transpose, transpose, float, float, std::span<const pl::gemm_group<A, B, C>>,
                    scratch_view) {}

  static std::size_t group_by_key_scratch_bytes(index_t, index_t) { return 0; }
  template <class Order>
  void group_by_key(on<Stream>, arg<view<const std::int32_t>, access_mode::read>,
                    arg<view<Order>, access_mode::write>, arg<view<std::int64_t>, access_mode::write>,
                    scratch_view) {}
  static std::size_t exclusive_scan_scratch_bytes(index_t) { return 0; }
  void exclusive_scan(on<Stream>, arg<view<const std::int64_t>, access_mode::read>,
                      arg<view<std::int64_t>, access_mode::write>, scratch_view) {}

  template <class F, class... Args> void host_task(on<Stream>, F, Args...) {
    pl::check_host_task<F, Args...>();
  }
  template <class T>
  void fetch(const Event&, arg<view<const T, pl::host_space>, access_mode::read>,
             std::type_identity_t<std::span<T>> into, const char*,
             std::type_identity_t<std::optional<T>> dry_answer = {}) {
    for (T& value : into) value = dry_answer.value_or(T{});
  }

  pl::counters counters() const { return {}; }

 private:
  DeviceMemory device_;
  HostMemory pinned_;
};

using archetype_backend = basic_archetype_backend<>;

} // namespace archetypes
