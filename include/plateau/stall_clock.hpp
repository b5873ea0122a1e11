// SPDX-License-Identifier: Apache-2.0
//
// How long streams wait for others, by the host's clock, read in stream order by host tasks; several streams
// may wait at a time, and each counts. Off unless asked for. The tasks hold what they write, since nothing
// else may outlive them: the stream is the caller's.
#pragma once

#include <plateau/config.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace plateau::inline v0::detail {

class stall_clock {
 public:
  explicit stall_clock(bool on) : time_(on ? std::make_shared<times>() : nullptr) {}

  // From zero, behind what the stream has been given so far.
  template <class Backend> void restart(Backend& be, typename Backend::stream& s) {
    tell(be, s, mark::restart);
  }
  // Before and behind a wait of the stream.
  template <class Backend> void begin(Backend& be, typename Backend::stream& s) { tell(be, s, mark::begin); }
  template <class Backend> void end(Backend& be, typename Backend::stream& s) { tell(be, s, mark::end); }
  // Of waits that have begun; one that goes on counts until now.
  double seconds() const {
    if (!time_) return 0;
    const std::lock_guard lock(time_->mutex);
    return 1e-9 * static_cast<double>(time_->ended_less_begun + time_->going_on * nanoseconds());
  }

 private:
  enum class mark : unsigned char { restart, begin, end };
  struct times {
    std::mutex mutex; // streams run side by side
    std::int64_t ended_less_begun = 0,
                 going_on = 0; // nanoseconds, summed over waits; how many have not ended
  };
  static std::int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  struct write_down {
    std::shared_ptr<times> t;
    mark what;

    void operator()() const {
      const std::lock_guard lock(t->mutex);
      const std::int64_t now = nanoseconds();
      if (what == mark::restart) {
        t->ended_less_begun = -now * t->going_on;
      } else {
        t->ended_less_begun += what == mark::begin ? -now : now;
        t->going_on += what == mark::begin ? 1 : -1;
      }
    }
  };
  template <class Backend> void tell(Backend& be, typename Backend::stream& s, mark what) {
    if (time_) be.host_task(s, write_down{time_, what});
  }

  std::shared_ptr<times> time_;
};

} // namespace plateau::inline v0::detail
