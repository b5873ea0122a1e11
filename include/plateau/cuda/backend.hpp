// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend: streams and events of the runtime, cuBLAS for products, CUB for sorting, scanning and the
// reductions of teams. As thin as it can be: what is checked and counted, and in which words, is shared with
// the other backends; everything here is one call, or a few whose order is argued where they stand.
//
// Include it anywhere. Functions that start kernels (launch, gemm, grouped_gemm, group_by_key,
// exclusive_scan) can be instantiated only where nvcc compiles; other files declare what uses them `extern
// template`.
#pragma once

#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/cuda/blas.hpp>
#include <plateau/cuda/copy.hpp>
#include <plateau/cuda/device.hpp>
#include <plateau/cuda/event.hpp>
#include <plateau/cuda/group_by_key.hpp>
#include <plateau/cuda/grouped_gemm.hpp>
#include <plateau/cuda/launch.hpp>
#include <plateau/cuda/memory.hpp>
#include <plateau/cuda/scan.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/cuda/stream.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/gemm_check.hpp>
#include <plateau/grouped.hpp>
#include <plateau/kernel.hpp>
#include <plateau/operation_checks.hpp>
#include <plateau/resource.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

// One per rank, used by that rank's host thread, whose current device it sets: a thread that uses two
// backends sets the device itself in between. Streams and buffers go before it, events may stay.
class cuda_backend {
 public:
  using stream = cudart::stream;
  using event = cudart::event;
  using device_memory = metered<cudart::device_resource>;
  using host_memory = metered<cudart::pinned_resource>;

  static constexpr bool row_invariant = cuda_scratch::row_invariant;
  static constexpr const char* name = "cuda";

  // `owner` names the rank in errors ("rank 2"); it must outlive the backend. Throws backend_error, with a
  // sentence, where there is no such device or its driver cannot be used.
  explicit cuda_backend(const char* owner = "", int device = 0)
      : owner_(owner), device_number_(opened(owner, device)), device_(owner), pinned_(owner) {}
  cuda_backend(const cuda_backend&) = delete;
  cuda_backend& operator=(const cuda_backend&) = delete;

  device_memory& device() { return device_; }
  host_memory& pinned() { return pinned_; }
  const plateau::counters& counters() const { return counters_; }
  int device_number() const { return device_number_; }

  stream make_stream(const char* stream_name) { return stream(events_, stream_name); }
  // Issues to a stream of the caller's, which stays theirs: see cudart::stream.
  stream make_stream(cuda_stream_ref theirs, const char* stream_name) {
    return stream(events_, theirs, stream_name);
  }
  event record(stream& s, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return s.record({file, line});
  }
  void wait(stream& s, const event& e, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    s.wait(e, {file, line});
  }
  void wait(const event& e) { e.wait(); }
  // Memory of the caller's, valid on `s` from here on; only a checking backend needs to know.
  void adopt(const void*, std::size_t, stream&) {}

  // Copies between views of equal length, or tiles of equal extents. Throws config_error when they differ.
  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<view<const T, S>, access_mode::read> from,
            arg<view<U, R>, access_mode::write> to) {
    check_copyable<cuda_backend, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), owner_);
    if (to.v.n == 0) return;
    counters_.copied_bytes += to.v.bytes();
    cudart::copy(s.stream, from.v, to.v, s.place());
  }
  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<tile<const T, S>, access_mode::read> from,
            arg<tile<U, R>, access_mode::write> to) {
    check_copyable<cuda_backend, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), owner_);
    if (to.v.rows == 0 || to.v.cols == 0) return;
    counters_.copied_bytes += to.v.bytes();
    cudart::copy(s.stream, from.v, to.v, s.place());
  }

  // Runs `kernel` over the grid; arguments are tagged views or plain values. Throws config_error for a grid
  // of negative size.
  template <class Grid, class Kernel, class... Args>
  void launch(on<stream> s, Grid grid, Kernel kernel, Args... args) {
    check_kernel<cuda_backend, Grid, Kernel, Args...>();
    check_grid(grid, s.place(), owner_);
    if (grid.n == 0) return;
    ++counters_.launches;
    cudart::launch(s.stream.handle(), grid, s.place(), kernel, unwrap(args)...);
  }

  // C = alpha op(A) op(B) + beta C; for batches, one product for each tile of the three.
  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(transpose op_a, transpose op_b, index_t m, index_t n, index_t k) {
    return cuda_scratch::gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k);
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile<const A, S>, access_mode::read> a, arg<tile<const B, S>, access_mode::read> b,
            float beta, arg<tile<C, S>, Mode> c, scratch_view scratch) {
    check_accessible<cuda_backend, S>();
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), owner_);
    if (shape.m == 0 || shape.n == 0) return;
    check_scratch("gemm", gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k), scratch,
                  s.place(), owner_);
    count(shape, 1);
    cudart::multiply(blas_, s.stream.handle(), shape, alpha, a.v, b.v, beta, c.v, scratch, s.place());
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile_batch<const A, S>, access_mode::read> a,
            arg<tile_batch<const B, S>, access_mode::read> b, float beta, arg<tile_batch<C, S>, Mode> c,
            scratch_view scratch) {
    check_accessible<cuda_backend, S>();
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), owner_);
    check_batch_counts(a.v.count, b.v.count, c.v.count, s.stream.name(), s.place(), owner_);
    if (shape.m == 0 || shape.n == 0 || c.v.count == 0) return;
    check_scratch("gemm", gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k), scratch,
                  s.place(), owner_);
    count(shape, c.v.count);
    cudart::multiply(blas_, s.stream.handle(), shape, alpha, a.v, b.v, beta, c.v, scratch, s.place());
  }
  // One product for each group; the scratch is that of the largest. Groups of no rows cost nothing. Nothing
  // is issued unless all fit.
  template <class A, class B, class C, class S>
  void grouped_gemm(on<stream> s, transpose op_a, transpose op_b, float alpha, float beta,
                    std::span<const gemm_group<A, B, C, S>> groups, scratch_view scratch) {
    for (const gemm_group<A, B, C, S>& g : groups) {
      const gemm_shape shape = checked_shape(op_a, op_b, g.a, g.b, beta, inout(g.c), s.place(), owner_);
      check_scratch("grouped_gemm", gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k),
                    scratch, s.place(), owner_);
    }
    for (const gemm_group<A, B, C, S>& g : groups)
      if (g.c.rows != 0 && g.c.cols != 0) count(cudart::shape_of(op_a, op_b, g), 1);
    cudart::multiply_groups(blas_, s.stream.handle(), op_a, op_b, alpha, beta, groups, scratch, s.place());
  }

  // See host::group_by_key for what it computes; stable. ids (n), order (n), offsets (keys + 1).
  static std::size_t group_by_key_scratch_bytes(index_t n, index_t keys) {
    return cuda_scratch::group_by_key_scratch_bytes(n, keys);
  }
  template <class Order, class S>
  void group_by_key(on<stream> s, arg<view<const std::int32_t, S>, access_mode::read> ids,
                    arg<view<Order, S>, access_mode::write> order,
                    arg<view<std::int64_t, S>, access_mode::write> offsets, scratch_view scratch) {
    check_accessible<cuda_backend, S>();
    check_group_by_key(ids.v, order.v, offsets.v.n, s.stream.name(), s.place(), owner_);
    check_scratch("group_by_key", group_by_key_scratch_bytes(ids.v.n, offsets.v.n - 1), scratch, s.place(),
                  owner_);
    cudart::group_by_key(s.stream.handle(), ids.v, order.v, offsets.v, scratch, s.place());
  }
  // sums (n + 1): the sum of all values before each, and at the end the total.
  static std::size_t exclusive_scan_scratch_bytes(index_t n) {
    return cuda_scratch::exclusive_scan_scratch_bytes(n);
  }
  template <class S>
  void exclusive_scan(on<stream> s, arg<view<const std::int64_t, S>, access_mode::read> values,
                      arg<view<std::int64_t, S>, access_mode::write> sums, scratch_view scratch) {
    check_accessible<cuda_backend, S>();
    check_exclusive_scan(values.v.n, sums.v.n, s.stream.name(), s.place(), owner_);
    check_scratch("exclusive_scan", exclusive_scan_scratch_bytes(values.v.n), scratch, s.place(), owner_);
    cudart::exclusive_scan(s.stream.handle(), values.v, sums.v, scratch, s.place());
  }

  // Host code that touches pinned memory, in stream order; views are of host memory. It runs on a thread of
  // the driver: nothing in it calls CUDA, frees memory of this backend, waits for another stream's work, or
  // takes a lock that is held anywhere during a call of CUDA or of this backend.
  template <class F, class... Args> void host_task(on<stream> s, F f, Args... args) {
    check_host_task<F, Args...>();
    s.stream.push([f = std::move(f), ... a = unwrap(args)]() mutable { f(a...); }, s.place());
  }
  // The only way a device value reaches the host: waits for the event and copies from pinned memory, also
  // when there is nothing to copy, which is no round trip. `label`, a literal, names the value; a data-free
  // backend answers with `dry_answer`, or with its scenario.
  template <class T>
  void fetch(const event& ready, arg<view<const T, host_space>, access_mode::read> from,
             std::type_identity_t<std::span<T>> into, const char* label,
             std::type_identity_t<std::optional<T>> /*dry_answer*/ = {}) {
    check_fetch(from.v.n, into.size(), label, owner_);
    if (!into.empty()) ++counters_.host_round_trips;
    ready.wait();
    if (!into.empty()) std::memcpy(into.data(), from.v.p, from.v.bytes());
  }

 private:
  static int opened(const char* owner, int device) {
    cudart::open_device(owner, device);
    return device;
  }
  void count(const gemm_shape& shape, index_t products) {
    if (shape.k == 0) return; // c is scaled, nothing is multiplied
    counters_.matrix_products += static_cast<std::uint64_t>(products);
    counters_.matrix_flops += static_cast<std::uint64_t>(2 * shape.m * shape.n * shape.k * products);
  }

  const char* owner_;
  int device_number_; // before all that needs a device
  cudart::blas_handle blas_;
  std::shared_ptr<cudart::event_pool> events_ = std::make_shared<cudart::event_pool>();
  device_memory device_;
  host_memory pinned_;
  plateau::counters counters_;
};

static_assert(backend<cuda_backend>);

} // namespace plateau::inline v0
