// SPDX-License-Identifier: Apache-2.0
//
// The host backend: streams are worker threads, device and pinned memory are both RAM but metered apart, so
// that peaks read as they would on a GPU. The matrix product, the way a kernel runs and what streams and
// memory are made of are parameters: `host_backend` has the built-in product and picks the widest vectors of
// this CPU at run time; plateau/blas has one with a BLAS, plateau/testing some whose streams hunt races.
#pragma once

#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/gemm_check.hpp>
#include <plateau/grouped.hpp>
#include <plateau/host/block_gemm.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/group_by_key.hpp>
#include <plateau/host/stream.hpp>
#include <plateau/kernel.hpp>
#include <plateau/kernel_name.hpp>
#include <plateau/operation_checks.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

namespace plateau::inline v0 {

namespace host {
// Runs kernels on one thread, with the widest vectors of this CPU or those of a given level.
struct cpu_runner {
  cpu_level level = detect_cpu_level();

  template <class Kernel, class... Args>
  void operator()(elements grid, const Kernel& kernel, Args... args) const {
    run_elements(level, index_t{0}, grid.n, kernel, args...);
  }
  template <class Kernel, class... Args>
  void operator()(rows grid, const Kernel& kernel, Args... args) const {
    run_rows(level, index_t{0}, grid.n, kernel, args...);
  }
};

// What a backend's streams and memory are made of: threads and RAM.
struct machine {
  using stream = host::stream;
  using event = host::event;
  template <class Space> using memory = ram_resource<Space>;

  template <class Space> memory<Space> make_memory() const { return {}; }
  stream make_stream(const char* name) const { return stream(name); }
};

// What an operation is to a stream that looks at it before it runs: see basic_host_backend::issue.
struct operation_name {
  const char* text;
  bool repeatable = true; // with the same memory before it leaves the same memory
};
struct scratch_argument {
  scratch_view v;
};
} // namespace host

template <class Gemm, class Runner = host::cpu_runner, class Machine = host::machine>
class basic_host_backend;

// Its kernels run where the host's memory is.
template <class Gemm, class Runner, class Machine>
inline constexpr bool accessible_from<basic_host_backend<Gemm, Runner, Machine>, host_space> = true;

// One per rank, used by that rank's host thread. `Gemm` as block_gemm, `Runner` as host::cpu_runner,
// `Machine` as host::machine.
template <class Gemm, class Runner, class Machine> class basic_host_backend {
 public:
  using stream = typename Machine::stream;
  using event = typename Machine::event;
  using device_memory = metered<typename Machine::template memory<device_space>>;
  using host_memory = metered<typename Machine::template memory<host_space>>;

  static constexpr bool row_invariant = Gemm::row_invariant;
  static constexpr const char* name = Gemm::name;

  // `owner` names the rank in errors ("rank 2"); it must outlive the backend.
  explicit basic_host_backend(const char* owner = "", Runner runner = {}, Machine machine = {})
      : owner_(owner), machine_(std::move(machine)),
        device_(owner, machine_.template make_memory<device_space>()),
        pinned_(owner, machine_.template make_memory<host_space>()), runner_(runner) {}
  basic_host_backend(const basic_host_backend&) = delete;
  basic_host_backend& operator=(const basic_host_backend&) = delete;

  device_memory& device() { return device_; }
  host_memory& pinned() { return pinned_; }
  const plateau::counters& counters() const { return counters_; }
  const Runner& runner() const { return runner_; }
  const Machine& machine() const { return machine_; }

  // Throws backend_error when the machine has no thread for it.
  stream make_stream(const char* stream_name) { return machine_.make_stream(stream_name); }
  event record(stream& s) { return s.record(); }
  void wait(stream& s, const event& e) { s.wait(e); }
  void wait(const event& e) { e.wait(); }
  // Memory of the caller's, valid on `s` from here on; only a checking backend needs to know.
  void adopt(const void*, std::size_t, stream&) {}

  // Copies between views of equal length, or tiles of equal extents. Throws config_error when they differ.
  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<view<const T, S>, access_mode::read> from,
            arg<view<U, R>, access_mode::write> to) {
    check_copyable<basic_host_backend, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), owner_);
    if (to.v.n == 0) return;
    counters_.copied_bytes += to.v.bytes();
    issue(
        s, {"copy"}, [from = from.v, to = to.v] { std::memcpy(to.p, from.p, to.bytes()); }, from, to);
  }
  template <class T, class S, class U, class R>
  void copy(on<stream> s, arg<tile<const T, S>, access_mode::read> from,
            arg<tile<U, R>, access_mode::write> to) {
    check_copyable<basic_host_backend, S, R>();
    check_copy(from.v, to.v, s.stream.name(), s.place(), owner_);
    if (to.v.rows == 0 || to.v.cols == 0) return;
    counters_.copied_bytes += to.v.bytes();
    issue(
        s, {"copy"},
        [from = from.v, to = to.v] {
          const std::size_t row_bytes = static_cast<std::size_t>(to.cols) * sizeof(T);
          for (index_t r = 0; r < to.rows; ++r) std::memcpy(to.row(r), from.row(r), row_bytes);
        },
        from, to);
  }

  // Runs `kernel` over the grid; arguments are tagged views or plain values. Throws config_error for a grid
  // of negative size.
  template <class Grid, class Kernel, class... Args>
  void launch(on<stream> s, Grid grid, Kernel kernel, Args... args) {
    check_kernel<basic_host_backend, Grid, Kernel, Args...>();
    check_grid(grid, s.place(), owner_);
    if (grid.n == 0) return;
    ++counters_.launches;
    issue(
        s, {kernel_name<Kernel>()},
        [this, grid, kernel, ... a = unwrap(args)] { runner_(grid, kernel, a...); }, args...);
  }

  // C = alpha op(A) op(B) + beta C; for batches, one product for each tile of the three.
  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(transpose op_a, transpose op_b, index_t m, index_t n, index_t k) {
    return Gemm::scratch_bytes(op_a, op_b, m, n, k, scalar_kind_of<A>, scalar_kind_of<B>, scalar_kind_of<C>);
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile<const A, S>, access_mode::read> a, arg<tile<const B, S>, access_mode::read> b,
            float beta, arg<tile<C, S>, Mode> c, scratch_view scratch) {
    check_accessible<basic_host_backend, S>();
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), owner_);
    if (shape.m == 0 || shape.n == 0) return;
    const std::size_t needed = gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k);
    check_scratch("gemm", needed, scratch, s.place(), owner_);
    count(shape, 1);
    const auto product = [level = level(), shape, alpha, a = a.v, b = b.v, beta, c = c.v, scratch] {
      multiply(level, shape, alpha, a, b, beta, c, scratch);
    };
    issue(s, {"gemm"}, product, a, b, c, used(scratch, needed));
  }
  template <class A, class B, class C, class S, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha,
            arg<tile_batch<const A, S>, access_mode::read> a,
            arg<tile_batch<const B, S>, access_mode::read> b, float beta, arg<tile_batch<C, S>, Mode> c,
            scratch_view scratch) {
    check_accessible<basic_host_backend, S>();
    const gemm_shape shape = checked_shape(op_a, op_b, a.v, b.v, beta, c, s.place(), owner_);
    check_batch_counts(a.v.count, b.v.count, c.v.count, s.stream.name(), s.place(), owner_);
    if (shape.m == 0 || shape.n == 0 || c.v.count == 0) return;
    const std::size_t needed = gemm_scratch_bytes<A, B, C>(op_a, op_b, shape.m, shape.n, shape.k);
    check_scratch("gemm", needed, scratch, s.place(), owner_);
    count(shape, c.v.count);
    const auto products = [level = level(), shape, alpha, a = a.v, b = b.v, beta, c = c.v, scratch] {
      for (index_t i = 0; i < c.count; ++i) multiply(level, shape, alpha, a[i], b[i], beta, c[i], scratch);
    };
    issue(s, {"gemm"}, products, a, b, c, used(scratch, needed));
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
      gemm(s, op_a, op_b, alpha, in(g.a), in(g.b), beta, inout(g.c), scratch);
  }

  // See host::group_by_key for what it computes; stable. ids (n), order (n), offsets (keys + 1).
  static std::size_t group_by_key_scratch_bytes(index_t, index_t keys) {
    return static_cast<std::size_t>(keys + 1) * sizeof(std::int64_t);
  }
  template <class Order, class S>
  void group_by_key(on<stream> s, arg<view<const std::int32_t, S>, access_mode::read> ids,
                    arg<view<Order, S>, access_mode::write> order,
                    arg<view<std::int64_t, S>, access_mode::write> offsets, scratch_view scratch) {
    check_accessible<basic_host_backend, S>();
    check_group_by_key(ids.v, order.v, offsets.v.n, s.stream.name(), s.place(), owner_);
    const std::size_t needed = group_by_key_scratch_bytes(ids.v.n, offsets.v.n - 1);
    check_scratch("group_by_key", needed, scratch, s.place(), owner_);
    issue(
        s, {"group_by_key"},
        [ids = ids.v, order = order.v, offsets = offsets.v, scratch] {
          host::group_by_key(ids, order, offsets, reinterpret_cast<std::int64_t*>(scratch.p));
        },
        ids, order, offsets, used(scratch, needed));
  }
  // sums (n + 1): the sum of all values before each, and at the end the total.
  static std::size_t exclusive_scan_scratch_bytes(index_t) { return 0; }
  template <class S>
  void exclusive_scan(on<stream> s, arg<view<const std::int64_t, S>, access_mode::read> values,
                      arg<view<std::int64_t, S>, access_mode::write> sums, scratch_view) {
    check_accessible<basic_host_backend, S>();
    check_exclusive_scan(values.v.n, sums.v.n, s.stream.name(), s.place(), owner_);
    issue(
        s, {"exclusive_scan"}, [values = values.v, sums = sums.v] { host::exclusive_scan(values, sums); },
        values, sums);
  }

  // Host code that touches pinned memory, in stream order; views are of host memory, as they would have to be
  // where device memory is another.
  template <class F, class... Args> void host_task(on<stream> s, F f, Args... args) {
    check_host_task<F, Args...>();
    issue(
        s, {"host task", false}, [f = std::move(f), ... a = unwrap(args)]() mutable { f(a...); }, args...);
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
  // Appends the operation `f` to the stream. A stream that looks at operations before they run is told this
  // one's name and arguments.
  template <class F, class... Args>
  static void issue(on<stream> s, host::operation_name what, F f, const Args&... args) {
    if constexpr (requires { stream::looks_at_operations; })
      s.stream.issue(what, std::move(f), s.place(), args...);
    else
      s.stream.push(std::move(f), s.place());
  }
  static host::scratch_argument used(scratch_view scratch, std::size_t needed) {
    return {{scratch.p, static_cast<index_t>(needed)}};
  }
  cpu_level level() const {
    if constexpr (requires { runner_.level; })
      return runner_.level;
    else
      return detect_cpu_level();
  }
  void count(const gemm_shape& shape, index_t products) {
    if (shape.k == 0) return; // c is scaled, nothing is multiplied
    counters_.matrix_products += static_cast<std::uint64_t>(products);
    counters_.matrix_flops += static_cast<std::uint64_t>(2 * shape.m * shape.n * shape.k * products);
  }
  template <class A, class B, class C>
  static void multiply(cpu_level level, const gemm_shape& shape, float alpha, A a, B b, float beta, C c,
                       scratch_view scratch) {
    Gemm::run(shape.a, shape.b, shape.m, shape.n, shape.k, alpha, a.p, a.ld, b.p, b.ld, beta, c.p, c.ld,
              scratch.p, level);
  }
  const char* owner_;
  Machine machine_;
  device_memory device_;
  host_memory pinned_;
  Runner runner_;
  plateau::counters counters_;
};

// The backend that needs nothing but a C++ compiler.
using host_backend = basic_host_backend<block_gemm>;
static_assert(backend<host_backend>);

} // namespace plateau::inline v0
