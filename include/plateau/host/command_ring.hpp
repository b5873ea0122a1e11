// SPDX-License-Identifier: Apache-2.0
//
// The queue between a host thread and the worker of one stream: a ring of bytes, fixed at construction, in
// which commands of any size lie one after the other. Pushing allocates nothing unless one command is larger
// than half the ring. A command runs in its place in the ring and is gone afterwards; when the ring is full,
// pushing waits. A command that comes after a failure is not run, but told of it, so that one that others
// wait for can tell them. What a failing command throws is kept with the name of the ring and the place in
// the source that issued the command.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace plateau::inline v0::host {

class command_ring {
 public:
  static constexpr std::size_t ring_bytes = std::size_t{1} << 20;

  // `name` is that of the stream, for what its commands throw.
  explicit command_ring(std::string name = {})
      : storage_(std::make_unique_for_overwrite<unsigned char[]>(ring_bytes)), name_(std::move(name)) {}
  command_ring(const command_ring&) = delete;
  command_ring& operator=(const command_ring&) = delete;

  // Appends a command, issued at the place `at`; `f()` runs it, and `f.skipped(failure)`, where it exists, is
  // called instead after a failure. What an F with the member type `relays` throws is another ring's failure,
  // and kept as it is. Returns the command's ticket: the number of commands up to and including it. Host
  // thread.
  template <class F> std::uint64_t push(F f, source_line at = {}) {
    static_assert(alignof(F) <= alignment, "plateau: an over-aligned command");
    if constexpr (sizeof(F) + sizeof(header) > ring_bytes / 2) {
      return push(boxed<F>{std::make_unique<F>(std::move(f))}, at);
    } else {
      const std::size_t bytes = round_up(sizeof(header) + sizeof(F));
      std::unique_lock lock(mutex_);
      await(lock, [&] { return room_for(bytes); });
      unsigned char* to = place(bytes);
      ::new (static_cast<void*>(to + sizeof(header))) F(std::move(f)); // may throw: nothing is issued yet
      ::new (static_cast<void*>(to)) header{&run_command<F>, bytes, at, relays<F>};
      tail_ += bytes;
      ++issued_;
      if (worker_sleeps_) work_.notify_one();
      return issued_;
    }
  }

  // The same for a command that needs bytes beside itself, as many as are known only here: they lie behind it
  // in the ring, aligned for everything, or on the heap when they are more than half of it. `make(p)` fills
  // them and returns the command; the ring is not locked meanwhile.
  template <class Make> std::uint64_t push_with(std::size_t extra_bytes, Make make, source_line at = {}) {
    using F = decltype(make(static_cast<unsigned char*>(nullptr)));
    static_assert(alignof(F) <= alignment, "plateau: an over-aligned command");
    constexpr std::size_t before = round_up(sizeof(header) + sizeof(F));
    if (extra_bytes > ring_bytes / 2 - before) {
      constexpr std::size_t unit = sizeof(std::max_align_t);
      auto storage = std::make_unique_for_overwrite<std::max_align_t[]>(extra_bytes / unit + 1);
      F f = make(reinterpret_cast<unsigned char*>(storage.get()));
      return push(stored<F>{std::move(storage), std::move(f)}, at);
    }
    const std::size_t bytes = round_up(before + extra_bytes);
    std::unique_lock lock(mutex_);
    await(lock, [&] { return room_for(bytes); });
    unsigned char* to = place(bytes);
    lock.unlock(); // the worker takes nothing that is not issued, and nobody else pushes
    ::new (static_cast<void*>(to + sizeof(header))) F(make(to + before));
    ::new (static_cast<void*>(to)) header{&run_command<F>, bytes, at, relays<F>};
    lock.lock();
    tail_ += bytes;
    ++issued_;
    if (worker_sleeps_) work_.notify_one();
    return issued_;
  }

  std::uint64_t issued() const {
    const std::lock_guard lock(mutex_);
    return issued_;
  }
  // Returns when the command of that ticket has ended; throws its failure, or that of one before it. Any
  // thread.
  void wait(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    await(lock, [&] { return done_ >= ticket; });
    if (failed_ && failed_at_ <= ticket) failed_->raise();
  }
  // The same for a command that waits on the ring of another stream: it ends early when `waiter`, its own
  // ring, is abandoned. Worker thread of `waiter`.
  void wait(std::uint64_t ticket, command_ring& waiter) {
    if (!done(ticket)) {
      struct interruption {
        command_ring& awaited;
        command_ring& waiter;
        bool ended = false; // under the mutex of `awaited`
        ~interruption() { waiter.interruptible(nullptr, nullptr); }
      } state{*this, waiter};
      waiter.interruptible(
          [](void* p, const failure&) {
            auto& s = *static_cast<interruption*>(p);
            const std::lock_guard lock(s.awaited.mutex_);
            s.ended = true;
            s.awaited.progress_.notify_all();
          },
          &state);
      std::unique_lock lock(mutex_);
      await(lock, [&] { return state.ended || done_ >= ticket; });
      if (done_ < ticket) return; // what comes after on `waiter` is skipped
    }
    wait(ticket);
  }
  // From here on commands are skipped, as after a failure; the one that is running is interrupted if it
  // allows that.
  void abandon(failure why) {
    {
      const std::lock_guard lock(mutex_);
      if (!failed_) fail(std::move(why), done_ + 1);
    }
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupt_ != nullptr) interrupt_(interrupted_, *failed_); // stable: the first failure stays
  }
  // A command that may wait for others says here how to end that wait; reset it with nullptr. `f` runs on the
  // thread that abandons, perhaps more than once, under a lock that this function takes too: call it while
  // holding nothing that `f` locks. Worker thread.
  void interruptible(void (*f)(void*, const failure&), void* argument) {
    const std::lock_guard lock(interrupt_mutex_);
    interrupt_ = f;
    interrupted_ = argument;
    if (f != nullptr && failed()) f(argument, *failed_);
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_one();
  }

  // Runs commands until stop() and the ring is empty. Worker thread.
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      worker_sleeps_ = true;
      work_.wait(lock, [&] { return stopping_ || done_ != issued_; });
      worker_sleeps_ = false;
      if (done_ == issued_) return;
      if (head_ == wrap_) head_ = wrap_ = 0; // the rest of the ring was skipped
      unsigned char* at = storage_.get() + head_;
      const header h = *std::launder(reinterpret_cast<header*>(at));
      const failure* skipped = failed_ ? &*failed_ : nullptr; // stable: the first failure stays
      lock.unlock();
      std::optional<failure> now;
      try {
        h.run(at + sizeof(header), skipped);
      } catch (...) {
        now = failure::current();
        if (!h.relays) say_where(*now, h.at);
      }
      lock.lock();
      ++done_;
      if (now && !failed_) fail(std::move(*now), done_);
      head_ += h.bytes;
      if (waiters_ != 0) progress_.notify_all();
    }
  }

 private:
  static constexpr std::size_t alignment = alignof(std::max_align_t);
  struct alignas(alignment) header {
    void (*run)(void* command, const failure* skipped);
    std::size_t bytes;
    source_line at;
    bool relays;
  };
  static constexpr std::size_t round_up(std::size_t n) { return (n + alignment - 1) / alignment * alignment; }

  template <class F> struct stored {
    std::unique_ptr<std::max_align_t[]> bytes;
    F f;
    void operator()() { f(); }
    void skipped(const failure& why) {
      if constexpr (requires { f.skipped(why); }) f.skipped(why);
    }
  };
  // What F throws is another ring's failure, which has its place already.
  template <class F> static constexpr bool relays = requires { typename F::relays; };

  template <class F> struct boxed {
    std::unique_ptr<F> f;
    void operator()() { (*f)(); }
    void skipped(const failure& why) {
      if constexpr (requires { f->skipped(why); }) f->skipped(why);
    }
  };
  template <class F> static void run_command(void* p, const failure* skipped) {
    F& f = *std::launder(reinterpret_cast<F*>(p));
    struct destroy {
      F& f;
      ~destroy() { f.~F(); }
    } at_end{f};
    if (skipped == nullptr)
      f();
    else if constexpr (requires { f.skipped(*skipped); })
      f.skipped(*skipped);
  }

  // To the text of a failure; not to a collective one, which has the same text on all ranks.
  void say_where(failure& f, source_line at) const {
    if (name_.empty() || f.what == failure::kind::collective) return;
    f.text += " (on stream '" + name_ + "'" + at.text() + ")";
  }
  template <class Predicate> void await(std::unique_lock<std::mutex>& lock, Predicate reached) {
    ++waiters_;
    progress_.wait(lock, reached);
    --waiters_;
  }
  // Commands lie in [head, tail), or in [head, wrap) and [0, tail) once the tail has gone round.
  bool room_for(std::size_t bytes) const {
    if (done_ == issued_) return true;
    if (wrap_ != 0) return tail_ + bytes <= head_;
    return tail_ + bytes <= ring_bytes || bytes <= head_;
  }
  unsigned char* place(std::size_t bytes) {
    if (done_ == issued_) head_ = tail_ = wrap_ = 0;
    if (wrap_ == 0 && tail_ + bytes > ring_bytes) {
      wrap_ = tail_;
      tail_ = 0;
    }
    return storage_.get() + tail_;
  }
  bool done(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return done_ >= ticket;
  }
  bool failed() const {
    const std::lock_guard lock(mutex_);
    return failed_.has_value();
  }
  void fail(failure why, std::uint64_t ticket) {
    failed_ = std::move(why);
    failed_at_ = ticket;
  }

  std::unique_ptr<unsigned char[]> storage_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable work_, progress_; // for the worker; for those who wait for it
  int waiters_ = 0;
  std::size_t head_ = 0, tail_ = 0, wrap_ = 0;
  std::uint64_t issued_ = 0, done_ = 0, failed_at_ = 0;
  bool worker_sleeps_ = false, stopping_ = false;
  std::optional<failure> failed_;
  // Taken before mutex_, never after it: so that f may lock what it likes, another ring too.
  std::mutex interrupt_mutex_;
  void (*interrupt_)(void*, const failure&) = nullptr;
  void* interrupted_ = nullptr;
};

} // namespace plateau::inline v0::host
