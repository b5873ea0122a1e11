// SPDX-License-Identifier: Apache-2.0
//
// Backends and communicators that lack one thing each: the archetype, with one member replaced by less. They
// are never run. `subject<T>` is what a file in tests/fail asks about: the near miss, or in its control the
// archetype.
#pragma once

#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>

#include <plateau/scalar.hpp>

#include <type_traits>

namespace near_misses {

using namespace archetypes;
using base = archetype_backend;
using plain_stream = archetypes::stream; // in a class, `stream` is the backend's

// --- memory ---

template <class Space> struct unaccounted { // plain, without a meter
  using space = Space;
  void* allocate(std::size_t, std::size_t, pl::tag);
  void deallocate(void*, std::size_t, std::size_t, pl::tag) noexcept;
};
struct elsewhere {
  static constexpr const char* name = "elsewhere";
};

struct pinned_stream {
  explicit pinned_stream(const char*) {}
  pinned_stream(const pinned_stream&) = delete;
};
struct event_from_somewhere {
  explicit event_from_somewhere(int);
};

// --- backends ---

using immovable_streams = basic_archetype_backend<pinned_stream>;
using no_default_event = basic_archetype_backend<stream, event_from_somewhere>;
using unaccounted_device = basic_archetype_backend<stream, event, unaccounted<pl::device_space>>;
using unaccounted_host =
    basic_archetype_backend<stream, event, memory<pl::device_space>, unaccounted<pl::host_space>>;
using foreign_device_space = basic_archetype_backend<stream, event, memory<elsewhere>>;
struct no_adopt : base {
  void adopt(const void*, std::size_t) {}
};
struct device_by_value : base {
  device_memory device();
};
struct anonymous_streams : base {
  plain_stream make_stream();
};
struct no_record : base {
  void record(plain_stream&);
};
struct host_waits_only : base {
  void wait(const archetypes::event&);
};
struct stream_waits_only : base {
  void wait(plain_stream&, const archetypes::event&);
};
struct copies_no_tiles : base {
  template <class T, class S, class R>
  void copy(on<plain_stream>, arg<view<const T, S>, access_mode::read>, arg<view<T, R>, access_mode::write>);
};
struct copies_within_one_space : base {
  template <class T, class S>
  void copy(on<plain_stream>, arg<view<const T, S>, access_mode::read>, arg<view<T, S>, access_mode::write>);
  template <class T, class S>
  void copy(on<plain_stream>, arg<tile<const T, S>, access_mode::read>, arg<tile<T, S>, access_mode::write>);
};
struct launches_no_elements : base {
  template <class Kernel, class... Args> void launch(on<plain_stream>, pl::rows, Kernel, Args...);
};
struct launches_no_rows : base {
  template <class Kernel, class... Args> void launch(on<plain_stream>, pl::elements, Kernel, Args...);
};
struct multiplies_batches_only : base {
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile_batch<const A>, access_mode::read>,
            arg<tile_batch<const B>, access_mode::read>, float, arg<tile_batch<C>, Mode>, scratch_view);
};
struct multiplies_tiles_only : base {
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile<const A>, access_mode::read>,
            arg<tile<const B>, access_mode::read>, float, arg<tile<C>, Mode>, scratch_view);
};
struct multiplies_one_type_only : base {
  template <class T, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile<const T>, access_mode::read>,
            arg<tile<const T>, access_mode::read>, float, arg<tile<T>, Mode>, scratch_view);
  using base::gemm_scratch_bytes;
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile_batch<const A>, access_mode::read>,
            arg<tile_batch<const B>, access_mode::read>, float, arg<tile_batch<C>, Mode>, scratch_view);
};
struct multiplies_narrow_into_wide_only : base { // bf16 into fp32, not into bf16
  template <class A, class B, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile<const A>, access_mode::read>,
            arg<tile<const B>, access_mode::read>, float, arg<tile<float>, Mode>, scratch_view);
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile_batch<const A>, access_mode::read>,
            arg<tile_batch<const B>, access_mode::read>, float, arg<tile_batch<C>, Mode>, scratch_view);
};
template <class Narrow> struct multiplies_some_batches : base { // into fp32 or into their own type, not both
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile<const A>, access_mode::read>,
            arg<tile<const B>, access_mode::read>, float, arg<tile<C>, Mode>, scratch_view);
  template <access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile_batch<const float>, access_mode::read>,
            arg<tile_batch<const float>, access_mode::read>, float, arg<tile_batch<float>, Mode>,
            scratch_view);
  template <access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float,
            arg<tile_batch<const pl::bfloat16>, access_mode::read>,
            arg<tile_batch<const pl::bfloat16>, access_mode::read>, float, arg<tile_batch<Narrow>, Mode>,
            scratch_view);
};
using batches_of_one_type = multiplies_some_batches<pl::bfloat16>;
using batches_into_wide = multiplies_some_batches<float>;
struct never_accumulates : base {
  template <class A, class B, class C>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile<const A>, access_mode::read>,
            arg<tile<const B>, access_mode::read>, float, arg<tile<C>, access_mode::write>, scratch_view);
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<plain_stream>, transpose, transpose, float, arg<tile_batch<const A>, access_mode::read>,
            arg<tile_batch<const B>, access_mode::read>, float, arg<tile_batch<C>, Mode>, scratch_view);
};
struct unknown_gemm_scratch : base {
  void gemm_scratch_bytes();
};
struct unknown_row_invariance : base {
  void row_invariant();
};
struct groups_of_one_type : base { // bf16 into bf16, not into fp32
  template <class T>
  void grouped_gemm(on<plain_stream>, transpose, transpose, float, float,
                    std::span<const pl::gemm_group<T, T, T>>, scratch_view);
};
struct groups_into_wide : base { // bf16 into fp32, not into bf16
  template <class T>
  void grouped_gemm(on<plain_stream>, transpose, transpose, float, float,
                    std::span<const pl::gemm_group<T, T, float>>, scratch_view);
};
struct no_grouped_gemm : base {
  void grouped_gemm();
};
struct groups_wide_keys_only : base { // of 64 bits; routing has 32
  void group_by_key(on<plain_stream>, arg<view<const std::int64_t>, access_mode::read>,
                    arg<view<std::int64_t>, access_mode::write>, arg<view<std::int64_t>, access_mode::write>,
                    scratch_view);
};
struct unknown_grouping_scratch : base {
  static std::size_t group_by_key_scratch_bytes(index_t);
};
struct scans_without_scratch : base {
  void exclusive_scan(on<plain_stream>, arg<view<const std::int64_t>, access_mode::read>,
                      arg<view<std::int64_t>, access_mode::write>);
};
struct unknown_scan_scratch : base {
  static void exclusive_scan_scratch_bytes(index_t);
};
struct no_host_task : base {
  template <class F> void host_task(on<plain_stream>, F);
};
struct fetches_without_dry_answer : base {
  template <class T>
  void fetch(const archetypes::event&, arg<view<const T, pl::host_space>, access_mode::read>,
             std::type_identity_t<std::span<T>>, const char*);
};
struct fetches_always_with_dry_answer : base {
  template <class T>
  void fetch(const archetypes::event&, arg<view<const T, pl::host_space>, access_mode::read>,
             std::type_identity_t<std::span<T>>, const char*, T);
};
struct no_counters : base {
  void counters() const;
};
struct counters_of_non_const : base {
  pl::counters counters();
};

// --- communicators ---

using group = archetype_communicator;
struct splits_into_nothing : group {
  void split(int, int);
};
template <class Self> struct splitting : group { // split gives one's own type, not the base
  Self split(int, int);
};
struct rank_is_long : splitting<rank_is_long> {
  long rank() const;
};
struct nameless_exchange : splitting<nameless_exchange> {
  void exchange(on<plain_stream>, pl::send_list, pl::receive_list);
};
struct exchanges_spans_only : splitting<exchanges_spans_only> { // not what is written in braces
  void exchange(on<plain_stream>, std::span<const pl::send_op>, std::span<const pl::receive_op>,
                const char* = "exchange");
};
struct nameless_host_exchange : splitting<nameless_host_exchange> {
  void host_exchange(std::span<const std::int64_t>, std::span<std::int64_t>);
};
struct size_of_non_const : splitting<size_of_non_const> {
  int size();
};
struct never_closes : splitting<never_closes> {
  void close_step() = delete;
};
struct aborts_without_cause : splitting<aborts_without_cause> {
  void abort();
};
struct latches_texts : splitting<latches_texts> { // a failure has a kind, and may come from elsewhere
  void latch(std::string);
};
struct counts_nothing : splitting<counts_nothing> {
  void counters() const;
};

#ifdef PLATEAU_FAIL_TEST_CONTROL
template <class> using subject = archetype_backend;
template <class> using communicator_subject = archetype_communicator;
#else
template <class NearMiss> using subject = NearMiss;
template <class NearMiss> using communicator_subject = NearMiss;
#endif

} // namespace near_misses
