// SPDX-License-Identifier: Apache-2.0
//
// A stream of the host backend: a worker thread that runs commands in the order in which they were issued. An
// event is a place in that order. A failure latches: what comes after it on the stream is skipped, and so is
// what waits for it on others; the host learns of it where it waits, with the stream's name and the line that
// issued the command.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/command_ring.hpp>

#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace plateau::inline v0::host {

// Everything issued to a stream up to some point. A default event counts as done. Copyable; outlives its
// stream.
class event {
 public:
  event() = default;
  event(std::shared_ptr<command_ring> ring, std::uint64_t ticket) : ring_(std::move(ring)), ticket_(ticket) {}

  // Blocks the calling thread; throws the failure that the event's stream had reached by then.
  void wait() const {
    if (ring_) ring_->wait(ticket_);
  }
  // The same for a command of the ring `waiter`; ends early when that is abandoned.
  void wait(command_ring& waiter) const {
    if (ring_) ring_->wait(ticket_, waiter);
  }
  bool on(const std::shared_ptr<command_ring>& ring) const { return !ring_ || ring_ == ring; }

 private:
  std::shared_ptr<command_ring> ring_;
  std::uint64_t ticket_ = 0;
};

// Used by one host thread at a time. Its destructor waits for everything that was issued; while an exception
// is passing through, what has not begun is skipped instead and peers that wait for it are told.
class stream {
 public:
  // Throws backend_error when the machine has no thread for it.
  explicit stream(const char* name)
      : ring_(std::make_shared<command_ring>(name)), name_(name), exceptions_(std::uncaught_exceptions()),
        worker_(start(ring_, name_)) {}
  stream(stream&&) noexcept = default;
  stream& operator=(stream&&) = delete;
  ~stream() {
    if (!ring_) return;
    if (std::uncaught_exceptions() > exceptions_)
      ring_->abandon(
          {failure::kind::other, "an exception passed through the scope of stream '" + name_ + "'"});
    ring_->stop();
    worker_.join();
  }

  // Appends a command, issued at the place `at` (see command_ring::push). For backends and communicators.
  template <class F> void push(F f, source_line at = {}) { ring_->push(std::move(f), at); }
  template <class Make> void push_with(std::size_t extra_bytes, Make make, source_line at = {}) {
    ring_->push_with(extra_bytes, std::move(make), at);
  }
  event record() const { return {ring_, ring_->issued()}; }
  // What comes later on this stream waits for the event, and fails if it failed.
  void wait(const event& e) {
    if (!e.on(ring_)) ring_->push(wait_command{e, ring_.get()});
  }
  const std::string& name() const { return name_; }
  const std::shared_ptr<command_ring>& ring() const { return ring_; }

 private:
  struct wait_command {
    using relays = void; // the other stream's failure has its place already
    event e;
    command_ring* self;
    void operator()() const { e.wait(*self); }
  };
  static std::thread start(const std::shared_ptr<command_ring>& ring, const std::string& name) {
    try {
      return std::thread([ring] { ring->work(); });
    } catch (const std::system_error& e) {
      throw backend_error("plateau: no thread for stream '" + name + "': " + e.what());
    }
  }

  std::shared_ptr<command_ring> ring_;
  std::string name_;
  int exceptions_;
  std::thread worker_;
};

} // namespace plateau::inline v0::host
