// SPDX-License-Identifier: Apache-2.0
//
// The host backend with one fault: its k-th operation fails, on the host thread that issues it or inside the
// stream that runs it. Allocations count as operations, so that memory can run out anywhere. An unarmed one
// counts operations and is otherwise the host backend.
#pragma once

#include <plateau/host/backend.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

namespace pl = plateau;

// Which operation fails, and how: one for each rank. Used by the rank's host thread.
struct fault_plan {
  enum class place { host, stream };

  std::int64_t at = -1; // counted from 0; -1: none
  place where = place::host;
  std::vector<const char*> seen; // the kind of each operation so far

  static constexpr const char* text = "injected fault";

  // True when the operation that is about to be issued shall fail.
  bool due(const char* kind) {
    seen.push_back(kind);
    return static_cast<std::int64_t>(seen.size()) - 1 == at;
  }
  std::string message() const {
    return std::string(text) + " at operation " + std::to_string(at) + " (" + seen.back() + ")";
  }
};

// An element kernel that fails where kernels run.
struct failing_kernel {
  void operator()(pl::index_t) const { throw pl::backend_error(fault_plan::text); }
};

// A resource whose allocations can fail.
template <class Upstream> class faulty_memory {
 public:
  using space = typename Upstream::space;

  faulty_memory(const char* owner, fault_plan& plan, const char* kind)
      : upstream_(owner), plan_(&plan), kind_(kind) {}
  void* allocate(std::size_t bytes, std::size_t alignment, pl::tag t) {
    if (plan_->due(kind_)) throw pl::backend_error(plan_->message());
    return upstream_.allocate(bytes, alignment, t);
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment, pl::tag t) noexcept {
    upstream_.deallocate(p, bytes, alignment, t);
  }
  pl::meter& meter() { return upstream_.meter(); }
  void retire(void* p, std::size_t bytes) noexcept { upstream_.retire(p, bytes); }

 private:
  Upstream upstream_;
  fault_plan* plan_;
  const char* kind_;
};

class faulty_backend : public pl::host_backend {
  using base = pl::host_backend;

 public:
  using device_memory = faulty_memory<base::device_memory>;
  using host_memory = faulty_memory<base::host_memory>;

  explicit faulty_backend(const char* owner = "")
      : base(owner), device_(owner, plan_, "device memory"), pinned_(owner, plan_, "pinned memory") {}

  fault_plan& plan() { return plan_; }
  device_memory& device() { return device_; }
  host_memory& pinned() { return pinned_; }

  // A device that cannot even record is lost: the stream has failed too, and nothing is in flight any more.
  event record(stream& s) {
    if (!plan_.due("record")) return base::record(s);
    fail_on(s);
    base::wait(base::record(s));
    throw pl::backend_error(plan_.message());
  }
  using base::wait;
  void wait(stream& s, const event& e) {
    if (!fails(s, "wait of a stream")) base::wait(s, e);
  }
  template <class From, class To> void copy(pl::on<stream> s, From from, To to) {
    if (!fails(s.stream, "copy")) base::copy(s, from, to);
  }
  template <class Grid, class Kernel, class... Args>
  void launch(pl::on<stream> s, Grid grid, Kernel kernel, Args... args) {
    if (!fails(s.stream, std::is_same_v<Grid, pl::rows> ? "row kernel" : "element kernel"))
      base::launch(s, grid, kernel, args...);
  }
  template <class A, class B, class C>
  void gemm(pl::on<stream> s, pl::transpose op_a, pl::transpose op_b, float alpha, A a, B b, float beta, C c,
            pl::scratch_view scratch) {
    if (!fails(s.stream, "gemm")) base::gemm(s, op_a, op_b, alpha, a, b, beta, c, scratch);
  }
  template <class A, class B, class C, class S>
  void grouped_gemm(pl::on<stream> s, pl::transpose op_a, pl::transpose op_b, float alpha, float beta,
                    std::span<const pl::gemm_group<A, B, C, S>> groups, pl::scratch_view scratch) {
    if (!fails(s.stream, "grouped gemm")) base::grouped_gemm(s, op_a, op_b, alpha, beta, groups, scratch);
  }
  template <class Ids, class Order, class Offsets>
  void group_by_key(pl::on<stream> s, Ids ids, Order order, Offsets offsets, pl::scratch_view scratch) {
    if (!fails(s.stream, "group by key")) base::group_by_key(s, ids, order, offsets, scratch);
  }
  template <class Values, class Sums>
  void exclusive_scan(pl::on<stream> s, Values values, Sums sums, pl::scratch_view scratch) {
    if (!fails(s.stream, "scan")) base::exclusive_scan(s, values, sums, scratch);
  }
  template <class F, class... Args> void host_task(pl::on<stream> s, F f, Args... args) {
    if (!fails(s.stream, "host task")) base::host_task(s, std::move(f), args...);
  }
  template <class T>
  void fetch(const event& ready, pl::arg<pl::view<const T, pl::host_space>, pl::access_mode::read> from,
             std::type_identity_t<std::span<T>> into, const char* label,
             std::type_identity_t<std::optional<T>> dry_answer = {}) {
    if (plan_.due("fetch")) throw pl::backend_error(plan_.message());
    base::fetch(ready, from, into, label, dry_answer);
  }

 private:
  // Counts the operation; true when the stream runs a fault in its stead.
  bool fails(stream& s, const char* kind) {
    if (!plan_.due(kind)) return false;
    if (plan_.where == fault_plan::place::host) throw pl::backend_error(plan_.message());
    if (std::string_view(kind).ends_with("kernel"))
      base::launch(s, pl::elements{1}, failing_kernel{});
    else
      fail_on(s);
    return true;
  }
  void fail_on(stream& s) {
    s.push([text = plan_.message()] { throw pl::backend_error(text); });
  }

  fault_plan plan_;
  device_memory device_;
  host_memory pinned_;
};

} // namespace support
