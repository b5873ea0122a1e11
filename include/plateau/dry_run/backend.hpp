// SPDX-License-Identifier: Apache-2.0
//
// The backend without data: every operation is checked and counted as on a real one, and recorded instead of
// run. Its memory has addresses but no bytes, so a model that fits on no machine here can be run through in
// seconds; its meters are those of the real backends, so that peaks are equal byte for byte to those of the
// backend whose scratch it models. What the program fetches comes from a scenario.
#pragma once

#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/dry_run/access_range.hpp>
#include <plateau/dry_run/communicator.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/recorder.hpp>
#include <plateau/dry_run/stream.hpp>
#include <plateau/dry_run/virtual_memory.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/gemm_check.hpp>
#include <plateau/grouped.hpp>
#include <plateau/kernel.hpp>
#include <plateau/kernel_name.hpp>
#include <plateau/operation_checks.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace plateau::inline v0 {

// How much scratch operations need: a backend, or a class with the static functions that name it.
template <class M>
concept scratch_model = requires(index_t n) {
  {
    M::template gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, n, n, n)
    } -> std::convertible_to<std::size_t>;
  { M::group_by_key_scratch_bytes(n, n) } -> std::convertible_to<std::size_t>;
  { M::exclusive_scan_scratch_bytes(n) } -> std::convertible_to<std::size_t>;
  { M::row_invariant } -> std::convertible_to<bool>;
};

template <class ScratchModel> class dry_run;

// Kernels reach what they reach on the modelled backend.
template <class M, class Space>
inline constexpr bool accessible_from<dry_run<M>, Space> = accessible_from<M, Space>;

// One per rank, used by that rank's host thread.
template <class ScratchModel> class dry_run {
  static_assert(scratch_model<ScratchModel>,
                "plateau dry_run: the scratch model is a backend, or has its static functions "
                "gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k), group_by_key_scratch_bytes(n, keys) and "
                "exclusive_scan_scratch_bytes(n), and row_invariant");

 public:
  using stream = dry::stream;
  using event = dry::event;
  using device_memory = metered<dry::virtual_memory<device_space>>;
  using host_memory = metered<dry::virtual_memory<host_space>>;

  static constexpr bool row_invariant = ScratchModel::row_invariant;

  // The backend of a rank of run_dry, or of a single rank. `owner` names the rank in errors; it must outlive
  // the backend.
  explicit dry_run(dry_communicator& comm) : dry_run(comm.recorder()) {}
  explicit dry_run(const char* owner = "", dry_options options = {})
      : dry_run(std::make_shared<dry::recorder>(owner, 0, std::move(options))) {}
  dry_run(const dry_run&) = delete;
  dry_run& operator=(const dry_run&) = delete;
  ~dry_run() {
    recorder_->keep_peaks(memory_kind::device, device_.meter());
    recorder_->keep_peaks(memory_kind::pinned_host, pinned_.meter());
    device_.meter().observe(nullptr);
    pinned_.meter().observe(nullptr);
  }

  device_memory& device() { return device_; }
  host_memory& pinned() { return pinned_; }
  const plateau::counters& counters() const { return counters_; }
  dry::recorder& recorder() { return *recorder_; }
  const dry::recorder& recorder() const { return *recorder_; }

  stream make_stream(const char* name) { return stream(*recorder_, name); }
  event record(stream& s) { return recorder_->record(s.number()); }
  void wait(stream& s, const event& e, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    recorder_->wait(s.number(), e, {file, line});
  }
  void wait(const event& e, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    recorder_->wait(0, e, {file, line});
  }
  void adopt(const void* p, std::size_t bytes, stream& s) { recorder_->adopted(p, bytes, s.number()); }

  // What the host's own thread does to memory, at once: for tests, and for programs that read or write pinned
  // memory outside of the seam. host_access(in(v), out(w), ...).
  template <class... Args> void host_access(const Args&... args) {
    const std::array<dry::access_range, sizeof...(Args)> touched{dry::range_of(args)...};
    recorder_->issue(0, {}, "access", {}, touched);
  }

  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<view<const T, S>, access_mode::read> from,
            arg<view<U, R>, access_mode::write> to) {
    check_copyable<dry_run, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), recorder_->owner());
    if (to.v.n != 0) copy_bytes(s, from, to);
  }
  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<tile<const T, S>, access_mode::read> from,
            arg<tile<U, R>, access_mode::write> to) {
    check_copyable<dry_run, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), recorder_->owner());
    if (to.v.rows != 0 && to.v.cols != 0) copy_bytes(s, from, to);
  }

  template <class Grid, class Kernel, class... Args>
  void launch(on<stream> s, Grid grid, [[maybe_unused]] Kernel kernel, Args... args) {
    check_kernel<dry_run, Grid, Kernel, Args...>();
    check_grid(grid, s.place(), recorder_->owner());
    if (grid.n == 0) return;
    if constexpr (says_moved_bytes<Kernel, Args...>)
      issue_moving(s, kernel_name<Kernel>(), dry::engine::compute,
                   kernel.moved_bytes(grid.n, unwrap(args)...), args...);
    else
      issue(s, kernel_name<Kernel>(), dry::engine::compute, args...);
    ++counters_.launches;
  }

  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(transpose op_a, transpose op_b, index_t m, index_t n, index_t k) {
    return ScratchModel::template gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k);
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile<const A, S>, access_mode::read> a, arg<tile<const B, S>, access_mode::read> b,
            float beta, arg<tile<C, S>, Mode> c, scratch_view scratch) {
    check_accessible<dry_run, S>();
    static_cast<void>(alpha);
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), recorder_->owner());
    if (shape.m == 0 || shape.n == 0) return;
    product<A, B, C>(s, "gemm", shape, 1, {range(a), range(b), result(c, beta)}, scratch);
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile_batch<const A, S>, access_mode::read> a,
            arg<tile_batch<const B, S>, access_mode::read> b, float beta, arg<tile_batch<C, S>, Mode> c,
            scratch_view scratch) {
    check_accessible<dry_run, S>();
    static_cast<void>(alpha);
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), recorder_->owner());
    check_batch_counts(a.v.count, b.v.count, c.v.count, s.stream.name(), s.place(), recorder_->owner());
    if (shape.m == 0 || shape.n == 0 || c.v.count == 0) return;
    product<A, B, C>(s, "gemm of batches", shape, c.v.count, {range(a), range(b), result(c, beta)}, scratch);
  }
  template <class A, class B, class C, class S>
  void grouped_gemm(on<stream> s, transpose op_a, transpose op_b, float alpha, float beta,
                    std::span<const gemm_group<A, B, C, S>> groups, scratch_view scratch) {
    static_cast<void>(alpha);
    touched_.clear();
    std::size_t needed = 0;
    dry::demand d{dry::engine::compute, 0, scalar_kind_of<A>, 0};
    plateau::counters added = counters_;
    for (const gemm_group<A, B, C, S>& g : groups) {
      const gemm_shape shape =
          checked_shape(op_a, op_b, g.a, g.b, beta, inout(g.c), s.place(), recorder_->owner());
      const std::size_t bytes = gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k);
      check_scratch("grouped_gemm", bytes, scratch, s.place(), recorder_->owner());
      if (shape.m == 0 || shape.n == 0) continue;
      needed = std::max(needed, bytes);
      d.flops += shape.flops();
      count(added, shape, 1);
      for (const dry::access_range& r : {range(in(g.a)), range(in(g.b)), result(inout(g.c), beta)})
        touched_.push_back(r);
    }
    if (touched_.empty()) return;
    for (const dry::access_range& r : touched_) d.bytes += moved(r);
    touched_.push_back(scratch_range(scratch, needed));
    recorder_->issue(s.stream.number(), s.place(), "grouped_gemm", d, touched_);
    counters_ = added;
  }

  static std::size_t group_by_key_scratch_bytes(index_t n, index_t keys) {
    return ScratchModel::group_by_key_scratch_bytes(n, keys);
  }
  template <class Order, class S>
  void group_by_key(on<stream> s, arg<view<const std::int32_t, S>, access_mode::read> ids,
                    arg<view<Order, S>, access_mode::write> order,
                    arg<view<std::int64_t, S>, access_mode::write> offsets, scratch_view scratch) {
    check_accessible<dry_run, S>();
    check_group_by_key(ids.v, order.v, offsets.v.n, s.stream.name(), s.place(), recorder_->owner());
    const std::size_t needed = group_by_key_scratch_bytes(ids.v.n, offsets.v.n - 1);
    check_scratch("group_by_key", needed, scratch, s.place(), recorder_->owner());
    issue(s, "group_by_key", dry::engine::compute, ids, order, offsets, scratch_range(scratch, needed));
  }
  static std::size_t exclusive_scan_scratch_bytes(index_t n) {
    return ScratchModel::exclusive_scan_scratch_bytes(n);
  }
  template <class S>
  void exclusive_scan(on<stream> s, arg<view<const std::int64_t, S>, access_mode::read> values,
                      arg<view<std::int64_t, S>, access_mode::write> sums, scratch_view scratch) {
    check_accessible<dry_run, S>();
    check_exclusive_scan(values.v.n, sums.v.n, s.stream.name(), s.place(), recorder_->owner());
    const std::size_t needed = exclusive_scan_scratch_bytes(values.v.n);
    check_scratch("exclusive_scan", needed, scratch, s.place(), recorder_->owner());
    issue(s, "exclusive_scan", dry::engine::compute, values, sums, scratch_range(scratch, needed));
  }

  template <class F, class... Args> void host_task(on<stream> s, F, Args... args) {
    check_host_task<F, Args...>();
    issue(s, "host_task", dry::engine::host, args...);
  }
  // Gives the scenario's values, or the dry answer. Throws config_error, naming the fetch, where there is
  // neither. What is recorded keeps `label`, which lives for the whole program.
  template <class T>
  void fetch(const event& ready, arg<view<const T, host_space>, access_mode::read> from,
             std::type_identity_t<std::span<T>> into, const char* label,
             std::type_identity_t<std::optional<T>> dry_answer = {}, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) {
    check_fetch(from.v.n, into.size(), label, recorder_->owner());
    recorder_->wait(0, ready, {file, line}, !into.empty());
    if (into.empty()) return;
    const std::array<dry::access_range, 1> touched{dry::range_of(from)};
    recorder_->issue(0, {file, line}, label, {}, touched);
    ++counters_.host_round_trips;
    const auto& scenario = recorder_->options().scenario;
    const dry_fetch request{recorder_->rank(), label, fetches_[label]++, sizeof(T),
                            std::as_writable_bytes(into)};
    if (scenario && scenario(request)) return;
    if (!dry_answer)
      throw config_error(error_prefix(recorder_->owner()) + "fetch of '" + label + "'" +
                         source_line{file, line}.text() + ": a dry run has no data for " +
                         (into.size() == 1 ? std::string("this value")
                                           : "these " + std::to_string(into.size()) + " values") +
                         ": give what it would be by the scenario of its dry_options");
    std::fill(into.begin(), into.end(), *dry_answer);
  }

 private:
  explicit dry_run(std::shared_ptr<dry::recorder> r)
      : recorder_(std::move(r)), device_(recorder_->owner(), dry::virtual_memory<device_space>(*recorder_)),
        pinned_(recorder_->owner(), dry::virtual_memory<host_space>(*recorder_)) {
    device_.meter().observe(&recorder_->observer(memory_kind::device));
    pinned_.meter().observe(&recorder_->observer(memory_kind::pinned_host));
  }

  template <class V, access_mode M> static dry::access_range range(const arg<V, M>& a) {
    return dry::range_of(a);
  }
  // With beta = 0 a result is only written, whatever its tag says.
  template <class V, access_mode M> static dry::access_range result(const arg<V, M>& c, float beta) {
    return dry::range_of(c.v, beta == 0.0F ? dry::touch::write : dry::touch::update);
  }
  static dry::access_range scratch_range(scratch_view v, std::size_t needed) {
    return {dry::detail::address_of(v.p), needed, 1, 0, 1, 0, dry::touch::scratch};
  }
  static std::uint64_t moved(const dry::access_range& r) {
    if (r.mode == dry::touch::scratch) return 0;
    const bool twice = r.mode == dry::touch::update || r.mode == dry::touch::accumulate;
    return (twice ? 2 : 1) * static_cast<std::uint64_t>(r.bytes());
  }

  template <class T> void note(const T&) {} // a plain value is nowhere
  template <class V, access_mode M> void note(const arg<V, M>& a) { note(range(a)); }
  void note(const dry::access_range& r) {
    if (!r.empty()) touched_.push_back(r);
  }
  template <class... Args>
  void issue(on<stream> s, const char* name, dry::engine on_engine, const Args&... args) {
    touched_.clear();
    (note(args), ...);
    dry::demand d{on_engine};
    for (const dry::access_range& r : touched_) d.bytes += moved(r);
    recorder_->issue(s.stream.number(), s.place(), name, d, touched_);
  }
  // The same for one that says how many bytes it moves.
  template <class... Args>
  void issue_moving(on<stream> s, const char* name, dry::engine on_engine, std::uint64_t bytes,
                    const Args&... args) {
    touched_.clear();
    (note(args), ...);
    dry::demand d{on_engine};
    d.bytes = bytes;
    recorder_->issue(s.stream.number(), s.place(), name, d, touched_);
  }
  template <class From, class To> void copy_bytes(on<stream> s, const From& from, const To& to) {
    using source = typename space_of_argument<From>::type;
    using target = typename space_of_argument<To>::type;
    constexpr bool host_source = std::is_same_v<source, host_space>,
                   host_target = std::is_same_v<target, host_space>;
    constexpr dry::engine on_engine = host_source && host_target ? dry::engine::host
                                      : host_source              ? dry::engine::host_to_device
                                      : host_target              ? dry::engine::device_to_host
                                                                 : dry::engine::device_copy;
    const std::array<dry::access_range, 2> touched{range(from), range(to)};
    recorder_->issue(s.stream.number(), s.place(), "copy",
                     {on_engine, 0, scalar_kind::none, static_cast<std::uint64_t>(to.v.bytes())}, touched);
    counters_.copied_bytes += to.v.bytes();
  }
  template <class A, class B, class C>
  void product(on<stream> s, const char* name, const gemm_shape& shape, index_t products,
               std::array<dry::access_range, 3> operands, scratch_view scratch) {
    const std::size_t needed = gemm_scratch_bytes<A, B, C>(shape.a, shape.b, shape.m, shape.n, shape.k);
    check_scratch("gemm", needed, scratch, s.place(), recorder_->owner());
    dry::demand d{dry::engine::compute, shape.flops() * static_cast<double>(products), scalar_kind_of<A>, 0};
    touched_.clear();
    for (const dry::access_range& r : operands) {
      d.bytes += moved(r);
      note(r);
    }
    note(scratch_range(scratch, needed));
    recorder_->issue(s.stream.number(), s.place(), name, d, touched_);
    count(counters_, shape, products);
  }
  static void count(plateau::counters& to, const gemm_shape& shape, index_t products) {
    if (shape.k == 0) return; // c is scaled, nothing is multiplied
    to.matrix_products += static_cast<std::uint64_t>(products);
    to.matrix_flops += static_cast<std::uint64_t>(2 * shape.m * shape.n * shape.k * products);
  }

  std::shared_ptr<dry::recorder> recorder_; // outlives the memory, which reports to it
  device_memory device_;
  host_memory pinned_;
  plateau::counters counters_;
  std::vector<dry::access_range> touched_;       // of the operation at hand
  std::map<std::string, std::uint64_t> fetches_; // by label
};

} // namespace plateau::inline v0
