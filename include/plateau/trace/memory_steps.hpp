// SPDX-License-Identifier: Apache-2.0
//
// What one memory pool of one rank held over time, as steps that are few enough to draw. Where there are more
// changes than steps, time is cut into stretches, of which the fullest moment and the last one remain: no
// maximum is lost, of the total or of any tag, and what lasts is what was there.
#pragma once

#include <plateau/config.hpp>
#include <plateau/meter.hpp>
#include <plateau/tag.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace plateau::inline v0 {

// What is held from `at` on, until the next step.
struct memory_step {
  double at = 0;
  std::size_t total = 0;
  bytes_by_tag held{};
};

// Of one pool of one rank; without samples there are no steps.
struct memory_history {
  std::vector<memory_step> steps;
  memory_step peak; // of the total: its first moment
};

namespace detail {
// Calls f(rank, step) for each moment at which a rank's pool changed: samples of one moment are one step.
template <class F> void for_each_moment(const trace& t, memory_kind pool, F f) {
  memory_step now;
  int rank = 0;
  bool open = false;
  for (const trace_memory& m : t.memory) {
    if (m.pool != pool) continue;
    if (open && (m.rank != rank || m.at != now.at)) {
      f(rank, now);
      if (m.rank != rank) now = {};
    }
    std::size_t& held = now.held[static_cast<std::size_t>(m.tag)];
    now.total += m.bytes - held; // wraps around, and back, where it becomes less
    held = m.bytes;
    now.at = m.at;
    rank = m.rank;
    open = true;
  }
  if (open) f(rank, now);
}

// Gives a history its steps: those that must stay, and of each stretch of time the fullest and the last.
class step_selection {
 public:
  // A length of 0: everything stays.
  step_selection(std::vector<memory_step>& to, double begin, double length)
      : to_(to), begin_(begin), length_(length) {}

  void add(const memory_step& s, bool must_stay) {
    if (must_stay || length_ == 0) {
      close();
      to_.push_back(s);
      return;
    }
    const double stretch = std::floor((s.at - begin_) / length_);
    if (stretch != stretch_) close();
    stretch_ = stretch;
    if (!open_ || s.total > fullest_.total) fullest_ = s;
    last_ = s;
    open_ = true;
  }
  void close() {
    if (!open_) return;
    to_.push_back(fullest_);
    if (last_.at != fullest_.at) to_.push_back(last_);
    open_ = false;
  }

 private:
  std::vector<memory_step>& to_;
  double begin_, length_, stretch_ = -1;
  memory_step fullest_, last_;
  bool open_ = false;
};
} // namespace detail

// At most `most` steps (>= 100), the first and the last moment among them.
inline memory_history memory_over_time(const trace& t, int rank, memory_kind pool, std::size_t most = 2000) {
  memory_history history;
  std::array<std::size_t, tag_count + 1> highest{}, when{}; // of each tag and the total: bytes, which moment
  std::size_t moments = 0;
  double begin = 0, end = 0;
  detail::for_each_moment(t, pool, [&](int of, const memory_step& s) {
    if (of != rank) return;
    if (moments == 0) begin = s.at;
    end = s.at;
    if (moments == 0 || s.total > history.peak.total) history.peak = s;
    for (std::size_t i = 0; i <= tag_count; ++i) {
      const std::size_t bytes = i == tag_count ? s.total : s.held[i];
      if (bytes <= highest[i]) continue;
      highest[i] = bytes;
      when[i] = moments;
    }
    ++moments;
  });
  // A moment that must stay cuts its stretch in two.
  constexpr std::size_t must_stay = tag_count + 3;
  const std::size_t stretches = (std::max<std::size_t>(most, 100) - 3 * must_stay) / 2;
  const bool all = moments <= most || end <= begin;
  detail::step_selection selection(history.steps, begin,
                                   all ? 0 : (end - begin) / static_cast<double>(stretches));
  std::size_t moment = 0;
  detail::for_each_moment(t, pool, [&](int of, const memory_step& s) {
    if (of != rank) return;
    const bool peak_of_something = std::find(when.begin(), when.end(), moment) != when.end();
    selection.add(s, moment == 0 || moment + 1 == moments || peak_of_something);
    ++moment;
  });
  selection.close();
  return history;
}

// The rank whose device memory rose highest, the first of equals; by pinned memory where no device memory is.
inline int rank_of_peak(const trace& t) {
  int highest = 0;
  std::size_t bytes = 0;
  for (const memory_kind pool : {memory_kind::device, memory_kind::pinned_host}) {
    if (bytes != 0) break;
    detail::for_each_moment(t, pool, [&](int rank, const memory_step& s) {
      if (s.total <= bytes) return;
      bytes = s.total;
      highest = rank;
    });
  }
  return highest;
}

} // namespace plateau::inline v0
