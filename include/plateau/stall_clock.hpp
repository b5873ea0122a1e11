// SPDX-License-Identifier: Apache-2.0
//
// How long a stream waits for another one, by the host's clock, read in stream order by host tasks. Off
// unless asked for. The tasks hold what they write, since nothing else may outlive them: the stream is the
// caller's.
#pragma once

#include <plateau/config.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

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
  double seconds() const { return time_ ? 1e-9 * static_cast<double>(time_->waited.load()) : 0; }

 private:
  enum class mark : unsigned char { restart, begin, end };
  struct times {
    std::atomic<std::int64_t> begun{0}, waited{0}; // nanoseconds
  };
  struct write_down {
    std::shared_ptr<times> t;
    mark what;

    void operator()() const {
      const std::int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count();
      if (what == mark::restart)
        t->waited = 0;
      else if (what == mark::begin)
        t->begun = now;
      else
        t->waited += now - t->begun;
    }
  };
  template <class Backend> void tell(Backend& be, typename Backend::stream& s, mark what) {
    if (time_) be.host_task(s, write_down{time_, what});
  }

  std::shared_ptr<times> time_;
};

} // namespace plateau::inline v0::detail
