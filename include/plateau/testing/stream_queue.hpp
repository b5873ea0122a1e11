// SPDX-License-Identifier: Apache-2.0
//
// What a seeded stream holds back: its operations, in the order in which they were issued, until the schedule
// lets the first one run. A failure latches as in the host backend's streams: what comes after it is skipped,
// and events behind it tell it to whoever waits for them.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace plateau::inline v0::testing {

// An operation of a stream. Called by whoever has the token.
class command {
 public:
  command(const char* what, source_line place) : name(what), at(place) {}
  command(const command&) = delete;
  command& operator=(const command&) = delete;
  virtual ~command() = default;

  // In how many ways it may go on now; 0 when it waits for something.
  virtual std::size_t choices() { return 1; }
  // Goes on in one of them. True when it has ended.
  virtual bool run(std::size_t choice) = 0;
  // Called instead of run after a failure of its stream.
  virtual void skipped(const failure&) {}
  // For which ranks it waits, if it waits for any.
  virtual const host::wait_site* site() { return nullptr; }

  const char* name;
  source_line at;
  bool relays = false; // what it throws is another stream's failure, which has its place already
  std::uint64_t issued = 0;
};

class schedule;

// The state of a stream, shared with its events, which may outlive it.
class stream_queue {
 public:
  stream_queue(std::shared_ptr<schedule> s, int of_rank, const char* stream_name)
      : world(std::move(s)), rank(of_rank), name(stream_name) {}

  const std::shared_ptr<schedule> world;
  const int rank; // whose host thread uses it, in the outermost communicator
  const std::string name;
  std::uint64_t number = 0; // among all streams, as created

  bool empty() const { return waiting_.empty(); }
  std::uint64_t issued() const { return done_ + waiting_.size(); }
  bool done(std::uint64_t ticket) const { return done_ >= ticket; }
  const command& head() const { return *waiting_.front(); }
  const host::wait_site* site() const {
    return waiting_.empty() || failed_ ? nullptr : waiting_.front()->site();
  }

  void push(std::unique_ptr<command> c) { waiting_.push_back(std::move(c)); }
  std::size_t choices() {
    if (waiting_.empty()) return 0;
    return failed_ ? 1 : waiting_.front()->choices();
  }
  void step(std::size_t choice) {
    command& c = *waiting_.front();
    bool ended = true;
    if (failed_) {
      c.skipped(*failed_);
    } else {
      try {
        ended = c.run(choice);
      } catch (...) {
        failed_ = failure::current();
        failed_at_ = done_ + 1;
        if (!c.relays && failed_->what != failure::kind::collective)
          failed_->text += " (on stream '" + name + "'" + c.at.text() + ")";
      }
    }
    if (!ended) return;
    ++done_;
    waiting_.pop_front();
  }
  // From here on operations are skipped.
  void abandon(failure why) {
    if (failed_) return;
    failed_ = std::move(why);
    failed_at_ = done_ + 1;
  }
  bool failed() const { return failed_.has_value(); }
  // Throws what failed among the operations up to and including this one.
  void raise(std::uint64_t ticket) const {
    if (failed_ && failed_at_ <= ticket) failed_->raise();
  }

 private:
  std::deque<std::unique_ptr<command>> waiting_;
  std::uint64_t done_ = 0, failed_at_ = 0;
  std::optional<failure> failed_;
};

} // namespace plateau::inline v0::testing
