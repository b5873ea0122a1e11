// SPDX-License-Identifier: Apache-2.0
//
// Memory resources and the buffer that owns a piece of one. A resource has a `space`, allocate(bytes,
// alignment, tag) and deallocate(p, bytes, alignment, tag) noexcept; `metered` puts a meter in front of any
// plain one. The library owns this concept: CUDA's cuda::mr moved between toolkits.
#pragma once

#include <plateau/config.hpp>
#include <plateau/meter.hpp>
#include <plateau/tag.hpp>
#include <plateau/tensor_traits.hpp>
#include <plateau/view.hpp>

#include <concepts>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace plateau::inline v0 {

template <class R>
concept memory_resource = requires(R& r, void* p, std::size_t n, tag t) {
  typename R::space;
  { r.allocate(n, n, t) } -> std::same_as<void*>;
  { r.deallocate(p, n, n, t) }
  noexcept;
};

// A resource that keeps accounts, as the two of a backend do: plateau::metered makes one of a plain one.
template <class R>
concept metered_resource = memory_resource<R> && requires(R& r, void* p, std::size_t n) {
  { r.meter() } -> std::same_as<meter&>;
  { r.retire(p, n) }
  noexcept;
};

// Ordinary host memory, as a space of the caller's choice: on the host backend, device and pinned memory are
// both RAM.
template <class Space> struct ram_resource {
  using space = Space;

  void* allocate(std::size_t bytes, std::size_t alignment, tag) {
    if (bytes == 0) return nullptr;
    try {
      return ::operator new(bytes, std::align_val_t(alignment));
    } catch (const std::bad_alloc&) {
      throw backend_error("plateau: the machine has no " + std::to_string(bytes) + " bytes of memory left");
    }
  }
  void deallocate(void* p, std::size_t, std::size_t alignment, tag) noexcept {
    if (p != nullptr) ::operator delete(p, std::align_val_t(alignment));
  }
};

// A resource whose bytes are metered. The limit is asked first, so that a refused request allocates nothing;
// bytes count as held once they exist, so that a request that the machine refuses is in no peak.
template <class Upstream> class metered {
 public:
  using space = typename Upstream::space;

  explicit metered(const char* owner = "", Upstream upstream = {})
      : meter_(space::name, owner), upstream_(std::move(upstream)) {}

  void* allocate(std::size_t bytes, std::size_t alignment, tag t) {
    meter_.reserve(t, bytes);
    try {
      void* p = upstream_.allocate(bytes, alignment, t);
      meter_.commit(t, bytes);
      return p;
    } catch (const backend_error& e) {
      meter_.withdraw(bytes);
      throw backend_error(std::string(e.what()) + "; " + meter_.budget_text());
    } catch (...) {
      meter_.withdraw(bytes);
      throw;
    }
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment, tag t) noexcept {
    upstream_.deallocate(p, bytes, alignment, t);
    meter_.release(t, bytes);
  }
  plateau::meter& meter() { return meter_; }
  const plateau::meter& meter() const { return meter_; }
  // The bytes at p are free for another use, though they stay allocated; only a checking resource cares.
  void retire(void* p, std::size_t bytes) noexcept {
    if constexpr (requires { upstream_.retire(p, bytes); }) upstream_.retire(p, bytes);
  }

 private:
  plateau::meter meter_;
  Upstream upstream_;
};

// The distance between parts of a slab: a device's preferred alignment, and what the lines of a working set
// are rounded to.
inline constexpr std::size_t part_alignment = 256;
constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + part_alignment - 1) / part_alignment * part_alignment;
}

// Owns n elements of a resource's memory. Movable; the contents start undefined. The resource must outlive
// it, and no work that uses the memory may be in flight when it goes, so streams are declared after the
// buffers that they use.
template <class T, memory_resource Resource> class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "plateau: a buffer holds trivially copyable elements");

 public:
  using space = typename Resource::space;

  buffer() = default;
  // Throws config_error for a negative or overflowing size, and what the resource throws.
  buffer(Resource& resource, index_t n, tag t) : resource_(&resource), n_(n), tag_(t) {
    constexpr auto most = std::numeric_limits<index_t>::max() / static_cast<index_t>(sizeof(T));
    if (n < 0 || n > most)
      throw config_error("plateau: a buffer of " + std::to_string(n) + " elements cannot exist");
    p_ = static_cast<T*>(resource.allocate(bytes(), part_alignment, t));
  }
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer gone(std::move(*this));
    swap(other);
    return *this;
  }
  ~buffer() {
    if (resource_ != nullptr) resource_->deallocate(p_, bytes(), part_alignment, tag_);
  }

  view<T, space> all() const { return {p_, n_}; }
  view<T, space> first(index_t n) const { return all().sub(0, n); }
  tile<T, space> matrix(index_t rows, index_t cols) const { return as_matrix(all(), rows, cols); }
  T* data() const { return p_; }
  index_t size() const { return n_; }
  std::size_t bytes() const { return static_cast<std::size_t>(n_) * sizeof(T); }

 private:
  void swap(buffer& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(p_, other.p_);
    std::swap(n_, other.n_);
    std::swap(tag_, other.tag_);
  }
  Resource* resource_ = nullptr;
  T* p_ = nullptr;
  index_t n_ = 0;
  tag tag_ = tag::other;
};

// A buffer is a tensor of rank 1. as_view refuses a temporary one, whose memory would be gone.
template <class T, class R> struct tensor_traits<buffer<T, R>> {
  using element_type = T;
  using space = typename R::space;
  static constexpr int rank = 1;
  static T* data(const buffer<T, R>& b) { return b.data(); }
  static index_t extent(const buffer<T, R>& b, int) { return b.size(); }
  static index_t stride(const buffer<T, R>&, int) { return 1; }
};
template <class T, class R> void as_view(const buffer<T, R>&&) = delete;
template <class T, class R> void as_tile(const buffer<T, R>&&) = delete;

template <class T, class Backend> using device_buffer = buffer<T, typename Backend::device_memory>;
template <class T, class Backend> using pinned_buffer = buffer<T, typename Backend::host_memory>;

static_assert(memory_resource<ram_resource<host_space>> &&
              metered_resource<metered<ram_resource<device_space>>>);

} // namespace plateau::inline v0
