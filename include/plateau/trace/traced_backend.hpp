// SPDX-License-Identifier: Apache-2.0
//
// Any backend, with a record of what its streams and its host did and when, and of what its memory held: a
// type of its own, so that a program that never traces pays nothing. An operation stands between two host
// tasks on its stream, which look at the clock: every backend has them, but on a device they take
// microseconds of their own, in which the stream does nothing else.
#pragma once

#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/kernel.hpp>
#include <plateau/kernel_name.hpp>
#include <plateau/trace/recorder.hpp>
#include <plateau/trace/trace.hpp>
#include <plateau/view.hpp>

#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

namespace detail {
// A stream that knows its recorder and its number there, and when its present operation began: written and
// read by its own commands only, one after the other.
template <class Stream> class traced_stream : public Stream {
 public:
  struct lane {
    trace_recorder* recorder;
    std::uint32_t number; // in it
    double begin = 0;
  };
  traced_stream(Stream&& plain, trace_recorder* recorder, std::uint32_t number)
      : Stream(std::move(plain)), lane_(std::make_shared<lane>(lane{recorder, number})) {}
  const std::shared_ptr<lane>& where() const { return lane_; }

 private:
  std::shared_ptr<lane> lane_;
};
} // namespace detail

// One per rank, used by that rank's host thread. Operations of size 0 leave no event.
template <class Backend> class traced_backend : public Backend {
 public:
  using untraced = Backend;
  using stream = detail::traced_stream<typename Backend::stream>;
  using event = typename Backend::event;

  // The recorder must outlive the backend and its streams; `arguments` are the backend's own. nullptr: this
  // one records nothing, for a program that decides only when it runs; an operation then costs a comparison.
  template <class... Args>
  explicit traced_backend(trace_recorder* recorder, Args&&... arguments)
      : Backend(std::forward<Args>(arguments)...), recorder_(recorder) {
    if (recorder == nullptr) return;
    this->device().meter().observe(recorder->device_observer());
    this->pinned().meter().observe(recorder->pinned_observer());
  }
  template <class... Args>
  explicit traced_backend(trace_recorder& recorder, Args&&... arguments)
      : traced_backend(&recorder, std::forward<Args>(arguments)...) {}
  ~traced_backend() {
    if (recorder_ == nullptr) return;
    this->device().meter().observe(nullptr);
    this->pinned().meter().observe(nullptr);
  }

  // nullptr where nothing is recorded.
  trace_recorder* recorder() { return recorder_; }

  stream make_stream(const char* called) {
    return stream(Backend::make_stream(called), recorder_,
                  recorder_ == nullptr ? 0 : recorder_->stream(called));
  }
  void wait(stream& s, const event& e) { Backend::wait(s, e); }
  void wait(const event& e, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const waiting until_done(recorder_, "wait", {file, line});
    Backend::wait(e);
  }
  template <class T>
  void fetch(const event& ready, arg<view<const T, host_space>, access_mode::read> from,
             std::type_identity_t<std::span<T>> into, const char* label,
             std::type_identity_t<std::optional<T>> dry_answer = {}) {
    const waiting until_done(recorder_, label, {}, into.size_bytes());
    Backend::fetch(ready, from, into, label, dry_answer);
  }

  template <class From, class To>
  void copy(on<stream> s, arg<From, access_mode::read> from, arg<To, access_mode::write> to) {
    traced(s, "copy", trace_kind::copy, to.v.bytes(), !is_empty(to.v),
           [&](on<typename Backend::stream> plain) { Backend::copy(plain, from, to); });
  }
  template <class Grid, class Kernel, class... Args>
  void launch(on<stream> s, Grid grid, Kernel kernel, Args... args) {
    check_kernel<Backend, Grid, Kernel, Args...>();
    traced(s, kernel_name<Kernel>(), trace_kind::compute, 0, grid.n > 0,
           [&](on<typename Backend::stream> plain) { Backend::launch(plain, grid, kernel, args...); });
  }
  template <class A, class B, class C, access_mode Mode>
  void gemm(on<stream> s, transpose op_a, transpose op_b, float alpha, arg<A, access_mode::read> a,
            arg<B, access_mode::read> b, float beta, arg<C, Mode> c, scratch_view scratch) {
    traced(s, "gemm", trace_kind::compute, 0, !is_empty(c.v), [&](on<typename Backend::stream> plain) {
      Backend::gemm(plain, op_a, op_b, alpha, a, b, beta, c, scratch);
    });
  }
  template <class A, class B, class C, class S>
  void grouped_gemm(on<stream> s, transpose op_a, transpose op_b, float alpha, float beta,
                    std::span<const gemm_group<A, B, C, S>> groups, scratch_view scratch) {
    bool any = false;
    for (const gemm_group<A, B, C, S>& g : groups) any = any || !is_empty(g.c);
    traced(s, "grouped_gemm", trace_kind::compute, 0, any, [&](on<typename Backend::stream> plain) {
      Backend::grouped_gemm(plain, op_a, op_b, alpha, beta, groups, scratch);
    });
  }
  template <class Order, class S>
  void group_by_key(on<stream> s, arg<view<const std::int32_t, S>, access_mode::read> ids,
                    arg<view<Order, S>, access_mode::write> order,
                    arg<view<std::int64_t, S>, access_mode::write> offsets, scratch_view scratch) {
    traced(s, "group_by_key", trace_kind::compute, 0, ids.v.n > 0, [&](on<typename Backend::stream> plain) {
      Backend::group_by_key(plain, ids, order, offsets, scratch);
    });
  }
  template <class S>
  void exclusive_scan(on<stream> s, arg<view<const std::int64_t, S>, access_mode::read> values,
                      arg<view<std::int64_t, S>, access_mode::write> sums, scratch_view scratch) {
    traced(
        s, "exclusive_scan", trace_kind::compute, 0, values.v.n > 0,
        [&](on<typename Backend::stream> plain) { Backend::exclusive_scan(plain, values, sums, scratch); });
  }
  template <class F, class... Args> void host_task(on<stream> s, F f, Args... args) {
    traced(s, "host_task", trace_kind::host, 0, true,
           [&](on<typename Backend::stream> plain) { Backend::host_task(plain, std::move(f), args...); });
  }

  // What the host does from here to the object's end is an event of kind waiting.
  class waiting {
   public:
    waiting(trace_recorder* to, const char* what, source_line at = {}, std::uint64_t bytes = 0) : to_(to) {
      if (to_ != nullptr) event_ = {what, at, to_->rank(), 0, trace_kind::waiting, to_->now(), 0, bytes};
    }
    waiting(const waiting&) = delete;
    waiting& operator=(const waiting&) = delete;
    ~waiting() {
      if (to_ == nullptr) return;
      event_.end = to_->now();
      to_->event(event_);
    }

   private:
    trace_recorder* to_;
    trace_event event_;
  };

  // Calls issue(plain) with the stream as the backend knows it; what that enqueues is one event, if it is
  // `something`. For communicators too. Nothing is recorded of what fails.
  template <class Issue>
  void traced(on<stream> s, const char* what, trace_kind kind, std::uint64_t bytes, bool something,
              Issue issue) {
    const on<typename Backend::stream> plain(s.stream, s.file, s.line);
    if (!something || recorder_ == nullptr) return issue(plain);
    const std::shared_ptr<typename stream::lane>& lane = s.stream.where();
    Backend::host_task(plain, [lane] { lane->begin = lane->recorder->now(); });
    issue(plain);
    Backend::host_task(plain, [lane, what, at = s.place(), kind, bytes] {
      trace_recorder& to = *lane->recorder;
      to.event({what, at, to.rank(), lane->number, kind, lane->begin, to.now(), bytes});
    });
  }

 private:
  template <class T, class S> static bool is_empty(const view<T, S>& v) { return v.n <= 0; }
  template <class T, class S> static bool is_empty(const tile<T, S>& t) { return t.rows <= 0 || t.cols <= 0; }
  template <class T, class S> static bool is_empty(const tile_batch<T, S>& t) {
    return t.rows <= 0 || t.cols <= 0 || t.count <= 0;
  }

  trace_recorder* recorder_;
};

// It reaches what its backend reaches.
template <class Backend, class Space>
inline constexpr bool accessible_from<traced_backend<Backend>, Space> = accessible_from<Backend, Space>;

} // namespace plateau::inline v0
