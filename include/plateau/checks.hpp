// SPDX-License-Identifier: Apache-2.0
//
// The concepts once more, as sentences. Compilers report a failed concept as a failed deduction, nvcc without
// any reason; every public template over a backend therefore begins with static_assert(check_backend<B>()),
// which names the one member that is missing and its signature.
#pragma once

#include <plateau/concepts.hpp>
#include <plateau/config.hpp>

namespace plateau::inline v0 {

// True, or the compilation stops with a sentence for each missing member.
template <class B> constexpr bool check_backend() {
  static_assert(probe::types<B>, "plateau backend: needs the types stream (movable), event (movable, default "
                                 "constructible), device_memory and host_memory");
  if constexpr (probe::types<B>) {
    static_assert(
        metered_resource<typename B::device_memory>,
        "plateau backend: device_memory needs a type space, void* allocate(bytes, alignment, tag), "
        "deallocate(p, bytes, alignment, tag) noexcept, meter& meter() and retire(p, bytes) noexcept: "
        "plateau::metered<R> has the last two");
    static_assert(
        metered_resource<typename B::host_memory>,
        "plateau backend: host_memory needs a type space, void* allocate(bytes, alignment, tag), "
        "deallocate(p, bytes, alignment, tag) noexcept, meter& meter() and retire(p, bytes) noexcept: "
        "plateau::metered<R> has the last two");
    static_assert(probe::resources<B>,
                  "plateau backend: needs device_memory& device() of device_space, host_memory& pinned() of "
                  "host_space and adopt(const void*, bytes, stream&)");
    static_assert(probe::streams<B>, "plateau backend: needs stream make_stream(const char* name)");
    static_assert(probe::records<B>, "plateau backend: needs event record(stream&)");
    static_assert(probe::waits<B>,
                  "plateau backend: needs wait(stream&, const event&) and wait(const event&)");
    static_assert(probe::copies<B>,
                  "plateau backend: needs copy(on<stream>, in(from), out(to)) for views and tiles, "
                  "between device and host in every direction");
    static_assert(probe::launches_elements<B>,
                  "plateau backend: needs launch(on<stream>, elements{n}, kernel, arguments...)");
    static_assert(probe::launches_rows<B>,
                  "plateau backend: needs launch(on<stream>, rows{n}, kernel, arguments...)");
    static_assert(
        probe::multiplies<B>,
        "plateau backend: needs gemm(on<stream>, transpose, transpose, alpha, in(a), in(b), beta, out(c) or "
        "inout(c), scratch) for tiles of fp32, of bf16 and of bf16 into fp32, static "
        "gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k) and static bool row_invariant");
    static_assert(
        probe::multiplies_batches<B>,
        "plateau backend: needs gemm(on<stream>, transpose, transpose, alpha, in(a), in(b), beta, out(c) or "
        "inout(c), scratch) for tile_batch of fp32, of bf16 and of bf16 into fp32");
    static_assert(
        probe::multiplies_groups<B>,
        "plateau backend: needs grouped_gemm(on<stream>, transpose, transpose, alpha, beta, span of "
        "gemm_group, scratch) for groups of fp32, of bf16 and of bf16 into fp32");
    static_assert(
        probe::groups_by_key<B>,
        "plateau backend: needs group_by_key(on<stream>, in(ids), out(order), out(offsets), scratch) and "
        "static group_by_key_scratch_bytes(n, keys)");
    static_assert(probe::scans<B>,
                  "plateau backend: needs exclusive_scan(on<stream>, in(values), out(sums), scratch) "
                  "and static exclusive_scan_scratch_bytes(n)");
    static_assert(probe::runs_host_tasks<B>,
                  "plateau backend: needs host_task(on<stream>, function, tagged arguments...)");
    static_assert(probe::fetches<B>,
                  "plateau backend: needs fetch(const event&, in(pinned view), span into, label, "
                  "dry answer)");
    static_assert(probe::counts<B>, "plateau backend: needs counters() const, giving plateau::counters");
  }
  return true;
}

// The same for a communicator whose exchanges run on streams of the backend B.
template <class C, class B> constexpr bool check_communicator() {
  static_assert(probe::ranks<C>, "plateau communicator: needs int rank() const and int size() const");
  static_assert(probe::splits<C>,
                "plateau communicator: needs split(int color, int key), giving its own type");
  static_assert(
      probe::exchanges<C, B>,
      "plateau communicator: needs exchange(on<stream>, send_list, receive_list, const char* what)");
  static_assert(probe::exchanges_integers<C>,
                "plateau communicator: needs host_exchange(span<const int64_t> mine, "
                "span<int64_t> all, const char* what)");
  static_assert(probe::closes_steps<C>,
                "plateau communicator: needs close_step() and abort(std::string cause)");
  static_assert(probe::latches<C>, "plateau communicator: needs latch(failure), from any thread");
  static_assert(probe::counts<C>, "plateau communicator: needs counters() const, giving plateau::counters");
  return true;
}

} // namespace plateau::inline v0
