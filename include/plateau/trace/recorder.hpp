// SPDX-License-Identifier: Apache-2.0
//
// What one rank of a real run did and held, as it happens: streams' workers write events, the meters of the
// rank's memory write what they count. Several ranks' recorders with a common origin of time make one trace.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/meter.hpp>
#include <plateau/tag.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// Of one rank; any thread. It keeps everything in memory, 64 bytes an event. Where that is not to be had, it
// loses what comes and counts it, since the run is worth more than its trace.
class trace_recorder {
 public:
  using clock = std::chrono::steady_clock;

  // Moments are seconds since the origin; ranks whose traces are merged share it.
  explicit trace_recorder(int rank, clock::time_point origin = clock::now())
      : rank_(rank), origin_(origin), device_(*this, memory_kind::device),
        pinned_(*this, memory_kind::pinned_host) {}
  trace_recorder(const trace_recorder&) = delete;
  trace_recorder& operator=(const trace_recorder&) = delete;

  int rank() const { return rank_; }
  double now() const { return std::chrono::duration<double>(clock::now() - origin_).count(); }

  // Makes a stream known, and returns its number: 0 is the host's thread, the first one made is 1.
  std::uint32_t stream(std::string name) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(name));
    return static_cast<std::uint32_t>(streams_.size());
  }
  // `e.rank` is filled in here.
  void event(trace_event e) noexcept {
    e.rank = rank_;
    keep(events_, e);
  }
  void memory(memory_kind pool, tag t, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    keep_locked(memory_, {rank_, pool, t, now(), bytes});
  }
  // The name lives for the whole program. A phase that two meters announce is one.
  void phase(const char* name) noexcept {
    const std::lock_guard lock(mutex_);
    if (!phases_.empty() && std::strcmp(phases_.back().name, name) == 0) return;
    keep_locked(phases_, {rank_, name, now()});
  }

  // Hand these to meter::observe of the rank's two pools; a traced_backend does it.
  meter_observer* device_observer() { return &device_; }
  meter_observer* pinned_observer() { return &pinned_; }

  // How many events and changes there was no memory for.
  std::uint64_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  // The trace of several ranks. Streams of one name are one: those of all ranks, and those that a rank has
  // one after the other. Throws config_error when two recorders are of one rank or have different origins.
  static trace merge(std::string title, const std::vector<const trace_recorder*>& ranks) {
    trace t;
    t.title = std::move(title);
    t.streams.push_back("host");
    for (const trace_recorder* r : in_order(ranks)) {
      const std::lock_guard lock(r->mutex_);
      const std::vector<std::uint32_t> into = r->shared_numbers(t.streams);
      const std::size_t first = t.events.size();
      t.events.insert(t.events.end(), r->events_.begin(), r->events_.end());
      for (std::size_t i = first; i < t.events.size(); ++i) t.events[i].stream = into[t.events[i].stream];
      std::stable_sort(t.events.begin() + static_cast<std::ptrdiff_t>(first), t.events.end(),
                       [](const trace_event& a, const trace_event& b) { return a.begin < b.begin; });
      t.memory.insert(t.memory.end(), r->memory_.begin(), r->memory_.end());
      t.phases.insert(t.phases.end(), r->phases_.begin(), r->phases_.end());
    }
    return t;
  }

 private:
  struct pool_observer final : meter_observer {
    pool_observer(trace_recorder& to, memory_kind pool) : to_(to), pool_(pool) {}
    void held(tag t, std::size_t bytes) noexcept override { to_.memory(pool_, t, bytes); }
    void phase(const char* name) noexcept override { to_.phase(name); }
    trace_recorder& to_;
    memory_kind pool_;
  };

  template <class T> void keep(std::vector<T>& to, const T& what) noexcept {
    const std::lock_guard lock(mutex_);
    keep_locked(to, what);
  }
  template <class T> void keep_locked(std::vector<T>& to, const T& what) noexcept {
    try {
      to.push_back(what);
    } catch (...) {
      ++lost_;
    }
  }

  static std::vector<const trace_recorder*> in_order(std::vector<const trace_recorder*> ranks) {
    std::sort(ranks.begin(), ranks.end(),
              [](const trace_recorder* a, const trace_recorder* b) { return a->rank_ < b->rank_; });
    for (std::size_t i = 1; i < ranks.size(); ++i)
      if (ranks[i]->rank_ == ranks[i - 1]->rank_ || ranks[i]->origin_ != ranks[i - 1]->origin_)
        throw config_error("plateau: trace_recorder::merge: the recorders of ranks " +
                           std::to_string(ranks[i - 1]->rank_) + " and " + std::to_string(ranks[i]->rank_) +
                           (ranks[i]->rank_ == ranks[i - 1]->rank_
                                ? " are of the same rank"
                                : " count time from different origins: give all of them the same"));
    return ranks;
  }
  // The number in the merged trace for each of this rank's streams.
  std::vector<std::uint32_t> shared_numbers(std::vector<std::string>& names) const {
    struct span {
      double begin = std::numeric_limits<double>::max(), end = 0;
    };
    std::vector<span> used(streams_.size() + 1);
    for (const trace_event& e : events_) {
      used[e.stream].begin = std::min(used[e.stream].begin, e.begin);
      used[e.stream].end = std::max(used[e.stream].end, e.end);
    }
    std::vector<std::uint32_t> into(streams_.size() + 1);
    std::vector<double> busy_until(names.size(), -1.0); // on this rank
    for (std::size_t s = 1; s < into.size(); ++s) {
      if (used[s].end < used[s].begin) continue; // nothing ran on it
      std::size_t i = 1;
      while (i < names.size() && (names[i] != streams_[s - 1] || busy_until[i] > used[s].begin)) ++i;
      if (i == names.size()) {
        names.push_back(streams_[s - 1]);
        busy_until.push_back(-1);
      }
      busy_until[i] = used[s].end;
      into[s] = static_cast<std::uint32_t>(i);
    }
    return into;
  }

  const int rank_;
  const clock::time_point origin_;
  mutable std::mutex mutex_;
  std::vector<std::string> streams_;
  std::vector<trace_event> events_;
  std::vector<trace_memory> memory_;
  std::vector<trace_phase> phases_;
  std::uint64_t lost_ = 0;
  pool_observer device_, pinned_;
};

} // namespace plateau::inline v0
