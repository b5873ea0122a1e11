// SPDX-License-Identifier: Apache-2.0
//
// A stream of a seeded backend, and its events. Nothing runs when it is issued: the schedule runs it later,
// somewhere between the calls of some rank's host thread. Otherwise as host::stream: order, failures and what
// their texts say.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/testing/audit.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/stream_queue.hpp>

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace plateau::inline v0::testing {

// Everything issued to a stream up to some point. A default event counts as done. Copyable; outlives its
// stream.
class seeded_event {
 public:
  seeded_event() = default;
  seeded_event(std::shared_ptr<stream_queue> queue, std::uint64_t ticket)
      : queue_(std::move(queue)), ticket_(ticket) {}

  // Lets other things happen until it is done; throws the failure that its stream had reached by then.
  void wait() const {
    if (!queue_) return;
    queue_->world->pause(queue_->rank);
    queue_->world->await(queue_->rank, nullptr, [this] { return done(); });
    raise();
  }
  bool done() const { return !queue_ || queue_->done(ticket_); }
  void raise() const {
    if (queue_) queue_->raise(ticket_);
  }
  bool on(const std::shared_ptr<stream_queue>& queue) const { return !queue_ || queue_ == queue; }

 private:
  std::shared_ptr<stream_queue> queue_;
  std::uint64_t ticket_ = 0;
};

class seeded_stream {
 public:
  static constexpr bool looks_at_operations = true;

  // Of the host thread of `rank`. An audited one looks at what operations do to their arguments.
  seeded_stream(std::shared_ptr<schedule> world, int rank, const char* name, bool audited)
      : queue_(std::make_shared<stream_queue>(std::move(world), rank, name)), audited_(audited),
        exceptions_(std::uncaught_exceptions()) {
    queue_->world->add(*queue_);
  }
  seeded_stream(seeded_stream&&) noexcept = default;
  seeded_stream& operator=(seeded_stream&&) = delete;
  // Waits for everything that was issued; while an exception is passing through, what has not ended is
  // skipped instead.
  ~seeded_stream() {
    if (!queue_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      queue_->abandon(
          {failure::kind::other, "an exception passed through the scope of stream '" + queue_->name + "'"});
      while (!queue_->empty()) queue_->step(0);
    } else {
      queue_->world->await(queue_->rank, nullptr, [this] { return queue_->empty(); });
    }
    queue_->world->remove(*queue_);
  }

  // Appends an operation with its name and arguments: see basic_host_backend::issue.
  template <class F, class... Args>
  void issue(host::operation_name what, F f, source_line at, const Args&... args) {
    // Not by make_unique, whose types for each F would take a tenth of the compile time of what issues much.
    if (audited_)
      append(std::unique_ptr<command>(new audited_call<F>(
          std::move(f), at, queue_->world->audit(), operation_of(what.text, what.repeatable, args...))));
    else
      append(std::unique_ptr<command>(new call<F>(what.text, std::move(f), at)));
  }
  template <class F> void push(F f, source_line at = {}) { issue({"command", false}, std::move(f), at); }
  void append(std::unique_ptr<command> c) { queue_->world->push(*queue_, std::move(c)); }

  seeded_event record() const { return {queue_, queue_->issued()}; }
  // What comes later on this stream waits for the event, and fails if it failed.
  void wait(const seeded_event& e) {
    if (!e.on(queue_)) append(std::make_unique<wait_command>(e));
  }
  const std::string& name() const { return queue_->name; }
  const std::shared_ptr<stream_queue>& queue() const { return queue_; }

 private:
  template <class F> class call final : public command {
   public:
    call(const char* what, F f, source_line place) : command(what, place), f_(std::move(f)) {}
    bool run(std::size_t) override {
      f_();
      return true;
    }

   private:
    F f_;
  };
  template <class F> class audited_call final : public command {
   public:
    audited_call(F f, source_line place, audit& by, operation o)
        : command(o.name, place), f_(std::move(f)), audit_(by), operation_(std::move(o)) {}
    bool run(std::size_t) override {
      audit_.run(operation_, [this] { f_(); });
      return true;
    }

   private:
    F f_;
    audit& audit_;
    operation operation_;
  };
  class wait_command final : public command {
   public:
    explicit wait_command(seeded_event e) : command("wait", {}), event_(std::move(e)) { relays = true; }
    std::size_t choices() override { return event_.done() ? 1 : 0; }
    bool run(std::size_t) override {
      event_.raise();
      return true;
    }

   private:
    seeded_event event_;
  };

  std::shared_ptr<stream_queue> queue_;
  bool audited_;
  int exceptions_;
};

} // namespace plateau::inline v0::testing
