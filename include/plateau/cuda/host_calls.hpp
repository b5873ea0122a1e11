// SPDX-License-Identifier: Apache-2.0
//
// Host code in a stream: cudaLaunchHostFunc with what it leaves out. Calls are numbered as they are issued;
// an exception in one stays with the stream, with the stream's name and the line that issued the call, and
// calls behind it are skipped. The device knows nothing of that and goes on, so whoever waits for an event
// asks here whether a call before it failed. A stream that waits for another one gets that one's failure by a
// call of its own, behind the wait.
//
// CUDA's rules hold for the code: it calls nothing of CUDA, and it waits for no other call, since the driver
// may run the calls of all streams on one thread. That thread may hold a lock of the driver's meanwhile: the
// code takes no lock that some other thread holds while it calls CUDA. Once a device has failed the driver
// calls nothing back there: what those calls hold, of this object too, stays until the process ends.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/error.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace plateau::inline v0::cudart {

// Of one stream. A ticket is the number of calls issued up to some point; 0 stands for none.
class host_calls {
 public:
  explicit host_calls(std::string name) : name_(std::move(name)) {}
  host_calls(const host_calls&) = delete;
  host_calls& operator=(const host_calls&) = delete;
  ~host_calls() {
    while (idle_ != nullptr) delete std::exchange(idle_, idle_->next);
  }

  const std::string& name() const { return name_; }
  std::uint64_t issued() const {
    const std::lock_guard lock(mutex_);
    return issued_;
  }
  // Throws what failed up to that ticket. Says nothing of calls that have not run: wait for an event first.
  void raise(std::uint64_t ticket) const {
    if (const auto why = failure_at(ticket)) why->raise();
  }
  // The same as a value.
  std::optional<failure> failure_at(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return failed_ && failed_at_ <= ticket ? failed_ : std::nullopt;
  }
  // Calls that have not begun are skipped from here on. Any thread.
  void abandon(failure why) {
    const std::lock_guard lock(mutex_);
    keep(std::move(why), done_ + 1);
  }

  // Appends a call to the stream, issued at the place `at`: `f()` runs it, and `f.skipped(failure)`, where it
  // exists, is called instead after a failure. What an F with the member type `relays` throws is another
  // stream's failure, and kept as it is. Takes nothing from the heap once as many calls were pending before,
  // unless F is large. Host thread of the stream.
  template <class F>
  static void issue(const std::shared_ptr<host_calls>& calls, cudaStream_t stream, F f, source_line at) {
    if constexpr (sizeof(F) > call::room || alignof(F) > alignof(std::max_align_t)) {
      issue(calls, stream, boxed<F>{std::make_unique<F>(std::move(f))}, at);
    } else {
      idle_call c{*calls, calls->take()};
      ::new (static_cast<void*>(c->storage)) F(std::move(f));
      c->run = &run_stored<F>;
      c->at = at;
      c->relays = relays<F>;
      c->home = calls; // until it has run: the stream's owner may be gone by then
      c->ticket = calls->issued() + 1;
      if (const cudaError_t status = cudaLaunchHostFunc(stream, &call_back, c.p); status != cudaSuccess) {
        reinterpret_cast<F*>(c->storage)->~F();
        fail(status, "cudaLaunchHostFunc", at.file, at.line);
      }
      c.p = nullptr; // the driver's now
      // Counted only now, when it is certain; the call may have run already, and knows its ticket.
      const std::lock_guard lock(calls->mutex_);
      ++calls->issued_;
    }
  }
  // What comes later on the stream of `calls` fails if a call of `other` up to `ticket` does. The stream
  // waits for an event behind that call already, so that a call of its own finds it done.
  static void follow(const std::shared_ptr<host_calls>& calls, cudaStream_t stream,
                     const std::shared_ptr<host_calls>& other, std::uint64_t ticket, source_line at) {
    if (calls == other || ticket == 0) return;
    if (auto why = other->failure_at(ticket)) { // known already: as if a call had failed here
      const std::lock_guard lock(calls->mutex_);
      calls->keep(std::move(*why), ++calls->issued_);
      return;
    }
    if (!other->done(ticket)) issue(calls, stream, relay{other, ticket}, at);
  }

 private:
  struct call {
    static constexpr std::size_t room = 256;
    void (*run)(void* f, const failure* skipped) = nullptr; // and destroys it
    std::shared_ptr<host_calls> home{};
    std::uint64_t ticket = 0;
    source_line at{};
    bool relays = false;
    call* next = nullptr;
    alignas(std::max_align_t) unsigned char storage[room];
  };
  struct idle_call { // goes back unless it is issued
    host_calls& calls;
    call* p;
    call* operator->() const { return p; }
    ~idle_call() {
      if (p != nullptr) calls.put_back(p);
    }
  };
  template <class F> static constexpr bool relays = requires { typename F::relays; };
  template <class F> struct boxed {
    std::unique_ptr<F> f;
    void operator()() { (*f)(); }
    void skipped(const failure& why) {
      if constexpr (requires { f->skipped(why); }) f->skipped(why);
    }
  };
  struct relay {
    using relays = void; // the other stream's failure has its place already
    std::shared_ptr<host_calls> other;
    std::uint64_t ticket;
    void operator()() const { other->raise(ticket); }
  };
  template <class F> static void run_stored(void* p, const failure* skipped) {
    F& f = *std::launder(reinterpret_cast<F*>(p));
    struct destroy {
      F& f;
      ~destroy() { f.~F(); }
    } const at_end{f};
    if (skipped == nullptr)
      f();
    else if constexpr (requires { f.skipped(*skipped); })
      f.skipped(*skipped);
  }

  // On a thread of the driver. Nothing is thrown through it.
  static void CUDART_CB call_back(void* p) {
    call* const c = static_cast<call*>(p);
    const std::shared_ptr<host_calls> home = std::move(c->home);
    const std::optional<failure> before = home->failure_at(c->ticket);
    std::optional<failure> now;
    try {
      c->run(c->storage, before ? &*before : nullptr);
    } catch (...) {
      now = failure::current();
      if (!c->relays) home->say_where(*now, c->at);
    }
    {
      const std::lock_guard lock(home->mutex_);
      home->done_ = c->ticket;
      if (now) home->keep(std::move(*now), c->ticket);
    }
    home->put_back(c);
  }
  // To the text of a failure; not to a collective one, which has the same text on all ranks.
  void say_where(failure& f, source_line at) const {
    if (f.what == failure::kind::collective) return;
    f.text += " (on stream '" + name_ + "'" + at.text() + ")";
  }
  // The first failure stays: the one with the lowest ticket, which need not be the one that comes to be known
  // first.
  void keep(failure why, std::uint64_t ticket) {
    if (failed_ && failed_at_ <= ticket) return;
    failed_ = std::move(why);
    failed_at_ = ticket;
  }
  bool done(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return done_ >= ticket;
  }
  call* take() {
    {
      const std::lock_guard lock(mutex_);
      if (idle_ != nullptr) return std::exchange(idle_, idle_->next);
    }
    return new call;
  }
  void put_back(call* c) {
    c->home.reset();
    const std::lock_guard lock(mutex_);
    c->next = std::exchange(idle_, c);
  }

  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t issued_ = 0, done_ = 0, failed_at_ = 0;
  std::optional<failure> failed_;
  call* idle_ = nullptr;
};

} // namespace plateau::inline v0::cudart
