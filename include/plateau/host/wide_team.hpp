// SPDX-License-Identifier: Apache-2.0
//
// A team of eight threads for tests: it runs a row kernel as a GPU would, all members in the kernel's body at
// once with a real barrier at the end of every team operation. Under the thread sanitizer it finds what the
// team of one cannot show: a write outside `for_each` and `once`, two calls of one `for_each` that touch the
// same element, a read of what another member writes before the next barrier. Members that make different
// calls are an error, not a hang. A right kernel gives the bits of serial_team, since the same lanes are
// summed in the same order.
//
// One run is one caller's: the threads start and end inside it. It is slow, and meant for a few small rows.
#pragma once

#include <plateau/config.hpp>
#include <plateau/team.hpp>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

inline constexpr index_t wide_team_size = 8;

namespace detail {

// Thrown in the members that wait when another one has failed; never leaves the run.
struct wide_team_stopped {};

// What a member is about to do; all members must agree.
struct wide_step {
  const char* call = "";
  index_t n = 0;
  index_t row = 0;
};

// Atomics and no mutex: a member that leaves late would lock the mutex after others who have already arrived
// at the next barrier, and be ordered behind writes of theirs that race with its own; the sanitizer would see
// no race.
class wide_barrier {
 public:
  // Returns when every member has arrived. The last one compares the steps; different ones fail the team.
  void arrive(index_t rank, wide_step step) {
    steps_[static_cast<std::size_t>(rank)] = step;
    const index_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == wide_team_size) {
      for (const wide_step& other : steps_)
        if (std::strcmp(other.call, step.call) != 0 || other.n != step.n || other.row != step.row)
          throw std::logic_error("plateau wide team: members made different calls: one " + describe(step) +
                                 ", another " + describe(other) +
                                 "; every member must make the same team calls in the same order");
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    }
    while (turn_.load(std::memory_order_acquire) == turn) {
      if (stopped_.load(std::memory_order_relaxed)) throw wide_team_stopped{};
      std::this_thread::yield();
    }
  }

  // Releases every waiting member, and keeps the first cause.
  void stop(std::exception_ptr cause) {
    if (!stopped_.exchange(true)) cause_ = std::move(cause);
  }

  // After all members have ended.
  std::exception_ptr cause() const { return cause_; }

 private:
  static std::string describe(const wide_step& step) {
    return std::string(step.call) + " of n = " + std::to_string(step.n) + " in row " +
           std::to_string(step.row);
  }

  std::array<wide_step, static_cast<std::size_t>(wide_team_size)> steps_;
  std::atomic<index_t> arrived_{0};
  std::atomic<index_t> turn_{0};
  std::atomic<bool> stopped_{false};
  std::exception_ptr cause_;
};

// Not std::max_align_t, on a vector of which nvcc 13 breaks down.
struct alignas(16) wide_unit {
  unsigned char bytes[16];
};

// What the members share: the barrier, and storage for one reduction.
struct wide_team_state {
  wide_barrier barrier;
  std::vector<wide_unit> lanes;

  void reserve(std::size_t bytes) {
    const std::size_t units = (bytes + sizeof(wide_unit) - 1) / sizeof(wide_unit);
    if (lanes.size() < units) lanes.resize(units);
  }
};

} // namespace detail

// One member's handle, with the interface of serial_team.
class wide_team {
 public:
  wide_team(detail::wide_team_state& state, index_t rank) : state_(&state), rank_(rank) {}

  static constexpr index_t size() { return wide_team_size; }
  index_t rank() const { return rank_; }

  template <class F> void for_each(index_t n, F f) {
    for (index_t i = rank_; i < n; i += size()) f(i);
    barrier("for_each", n);
  }

  template <class Radicand, class F> void for_each_sqrt(index_t n, Radicand radicand, F f) {
    for (index_t i = rank_; i < n; i += size()) f(i, std::sqrt(radicand(i)));
    barrier("for_each_sqrt", n);
  }

  template <class T, class Op, class F> T reduce(index_t n, T identity, Op op, F f) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "plateau team: reduce needs a trivially copyable value type");
    static_assert(alignof(T) <= alignof(detail::wide_unit), "plateau wide team: no over-aligned value types");
    // Its own lanes only, each in order: four neighbours a member.
    constexpr index_t own = team_lanes / wide_team_size;
    T sums[own];
    for (index_t k = 0; k < own; ++k) {
      sums[k] = identity;
      for (index_t i = rank_ * own + k; i < n; i += team_lanes) sums[k] = op(sums[k], static_cast<T>(f(i)));
    }
    // One member makes room, while all are between two barriers.
    if (rank_ == 0) state_->reserve(sizeof(T) * static_cast<std::size_t>(team_lanes));
    barrier("reduce", n);
    auto* shared = reinterpret_cast<std::byte*>(state_->lanes.data());
    std::memcpy(shared + static_cast<std::size_t>(rank_ * own) * sizeof(T), sums, sizeof sums);
    barrier("reduce", n);
    T lanes[team_lanes];
    std::memcpy(lanes, shared, sizeof lanes);
    barrier("reduce", n);
    return serial_team::join(lanes, op);
  }

  template <class F> void once(F f) {
    if (rank_ == 0) f();
    barrier("once", 0);
  }

  // Called by the runner between rows: a member that has left the kernel early is found here.
  void begin_row(index_t row) { row_ = row; }
  void end_row() { barrier("the end of the kernel", 0); }

 private:
  void barrier(const char* call, index_t n) { state_->barrier.arrive(rank_, {call, n, row_}); }

  detail::wide_team_state* state_;
  index_t rank_;
  index_t row_ = 0;
};

namespace detail {
// member(of, rank) on one thread per member; rethrows the first cause once all have ended. Not a template:
// every kernel would have threads of a type of its own.
inline void run_wide(wide_barrier& barrier, void (*member)(void* of, index_t rank), void* of) {
  const auto guarded = [&barrier, member, of](index_t rank) {
    try {
      member(of, rank);
    } catch (const wide_team_stopped&) { // another member has said why
    } catch (...) {
      barrier.stop(std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(wide_team_size));
  try {
    for (index_t rank = 0; rank < wide_team_size; ++rank) threads.emplace_back(guarded, rank);
  } catch (...) { // the machine has no more threads: those that run must not wait for the rest
    barrier.stop(std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  if (barrier.cause()) std::rethrow_exception(barrier.cause());
}
template <class Member> void run_wide(wide_barrier& barrier, Member member) {
  run_wide(
      barrier, [](void* of, index_t rank) { (*static_cast<Member*>(of))(rank); }, &member);
}
} // namespace detail

namespace host {

// kernel(team, row, args...) by all eight members for every row in [first, last), row by row. Rethrows what a
// member throws once all have ended; throws std::logic_error when members make different team calls.
template <class Kernel, class... Args>
void run_rows_wide(index_t first, index_t last, Kernel kernel, Args... args) {
  plateau::detail::wide_team_state state;
  plateau::detail::run_wide(state.barrier, [&](index_t rank) {
    wide_team team(state, rank);
    for (index_t row = first; row < last; ++row) {
      team.begin_row(row);
      kernel(team, row, args...);
      team.end_row();
    }
  });
}

// kernel(i, args...) for every i in [first, last), neighbours on different threads. Rethrows as above.
template <class Kernel, class... Args>
void run_elements_wide(index_t first, index_t last, Kernel kernel, Args... args) {
  plateau::detail::wide_barrier barrier;
  plateau::detail::run_wide(barrier, [&](index_t rank) {
    for (index_t i = first + rank; i < last; i += wide_team_size) kernel(i, args...);
  });
}

// A runner for the host backend: every launch runs wide, row and element kernels alike.
struct wide_runner {
  template <class Kernel, class... Args>
  void operator()(elements grid, const Kernel& kernel, Args... args) const {
    run_elements_wide(index_t{0}, grid.n, kernel, args...);
  }
  template <class Kernel, class... Args>
  void operator()(rows grid, const Kernel& kernel, Args... args) const {
    run_rows_wide(index_t{0}, grid.n, kernel, args...);
  }
};

} // namespace host

} // namespace plateau::inline v0
