// SPDX-License-Identifier: Apache-2.0
//
// A stream is a thread with a queue. What is appended runs there in order, some time later; on request each
// operation is put off by a random time first. No two streams share a lock while operations run, so that the
// thread sanitizer sees an order between them only where an event, or the host, makes one. Nothing calls
// operator new once a stream exists, since tests count such calls.
#pragma once

#include <cuda_stand_in/process.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <thread>
#include <type_traits>

namespace cuda_stand_in {

// Something that is done once: shared by whoever waits for it.
class completion {
 public:
  static completion* make(int owners) {
    void* p = std::malloc(sizeof(completion));
    if (p == nullptr) std::abort();
    return new (p) completion(owners);
  }
  completion* share() {
    owners_.fetch_add(1, std::memory_order_relaxed);
    return this;
  }
  void drop() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    this->~completion();
    std::free(this);
  }
  void finish() {
    std::lock_guard lock(mutex_);
    done_ = true;
    at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  std::chrono::steady_clock::time_point at() {
    std::lock_guard lock(mutex_);
    return at_;
  }

 private:
  explicit completion(int owners) : owners_(owners) {}
  std::atomic<int> owners_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point at_{};
};

// Handles that have been given out. Objects are never freed, so that a stale handle is known for what it is.
template <class T> class registry {
 public:
  T* add(std::unique_ptr<T> made) {
    std::unique_lock lock(mutex_);
    all_.push_back(std::move(made));
    living_.insert(all_.back().get());
    return all_.back().get();
  }
  bool has(T* p) {
    std::shared_lock lock(mutex_);
    return living_.count(p) != 0;
  }
  bool remove(T* p) {
    std::unique_lock lock(mutex_);
    return living_.erase(p) != 0;
  }
  std::size_t living() {
    std::shared_lock lock(mutex_);
    return living_.size();
  }
  // Removes all, and calls f(object) for each.
  template <class F> void take_all(F f) {
    std::unique_lock lock(mutex_);
    for (T* one : std::exchange(living_, {})) f(*one);
  }
  // f(object) for all there ever were.
  template <class F> void each(F f) {
    std::shared_lock lock(mutex_);
    for (const auto& one : all_) f(*one);
  }

 private:
  std::shared_mutex mutex_;
  std::vector<std::unique_ptr<T>> all_;
  std::set<T*> living_;
};

// One operation of a stream: a function object in memory of its own.
struct command {
  command* next = nullptr;
  void (*run)(command*) = nullptr; // and frees
  completion* then = nullptr;      // finished once the operation no longer counts as pending
};

template <class F> command* make_command(F f) {
  struct holder : command {
    explicit holder(F g) : function(std::move(g)) {}
    F function;
  };
  static_assert(alignof(holder) <= alignof(std::max_align_t));
  void* p = std::malloc(sizeof(holder));
  if (p == nullptr) std::abort();
  auto* h = new (p) holder(std::move(f));
  h->run = [](command* c) {
    auto* self = static_cast<holder*>(c);
    self->function();
    self->~holder();
    std::free(static_cast<void*>(self));
  };
  return h;
}

// What is one per device: an error that stays, once a kernel or a copy has gone wrong.
struct device_state {
  std::atomic<int> failed_with{0};
};
inline device_state& device_of(int device) {
  static auto* const all = new device_state[64];
  return all[device];
}

} // namespace cuda_stand_in

// The runtime's own names for what stands behind its handles.
struct CUstream_st {
  CUstream_st(int device_number, unsigned creation_flags, std::uint64_t n)
      : device(device_number), flags(creation_flags), random{n} {
    cuda_stand_in::here(); // before the thread
    worker_ = std::thread([this] { work(); });
  }

  // Appends an operation. `always`: also after an error of the device.
  template <class F> void append(F f, bool always = false) {
    cuda_stand_in::command* c = cuda_stand_in::make_command([this, always, g = std::move(f)]() mutable {
      if (!always && cuda_stand_in::device_of(device).failed_with.load(std::memory_order_relaxed) != 0)
        return;
      g();
    });
    push(c);
  }
  // Finishes `done`, of which it owns a share, once all that was appended so far has run; also after an
  // error.
  void append_record(cuda_stand_in::completion* done) {
    cuda_stand_in::command* c = cuda_stand_in::make_command([] {});
    c->then = done;
    push(c);
  }
  // Waits for all that has been appended so far.
  void finish() {
    auto* done = cuda_stand_in::completion::make(2);
    append_record(done);
    done->wait();
    done->drop();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return pending_ == 0;
  }
  // The thread ends once the queue is empty; nobody waits for it here.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      closed_ = cuda_stand_in::completion::make(1);
      changed_.notify_one();
    }
    worker_.detach();
  }

  // Waits until a closed stream has done everything.
  void wait_until_closed() {
    std::unique_lock lock(mutex_);
    cuda_stand_in::completion* const c = closed_;
    lock.unlock();
    if (c != nullptr) c->wait();
  }

  const int device;
  const unsigned flags;

 private:
  void push(cuda_stand_in::command* c) {
    std::lock_guard lock(mutex_);
    *tail_ = c;
    tail_ = &c->next;
    ++pending_;
    changed_.notify_one();
  }
  void work() {
    cuda_stand_in::doing = cuda_stand_in::activity::library;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return head_ != nullptr || closing_; });
      if (head_ == nullptr) break;
      cuda_stand_in::command* c = head_;
      head_ = c->next;
      if (head_ == nullptr) tail_ = &head_;
      lock.unlock();
      cuda_stand_in::completion* const then = c->then;
      delay();
      c->run(c);
      lock.lock();
      --pending_;
      if (then == nullptr) continue;
      lock.unlock();
      then->finish();
      then->drop();
      lock.lock();
    }
    closed_->finish();
  }
  void delay() {
    auto& process = cuda_stand_in::here();
    const std::uint64_t version = process.settings_version.load(std::memory_order_relaxed);
    if (version != settings_version_) {
      settings_version_ = version;
      const cuda_stand_in::options now = cuda_stand_in::settings();
      longest_delay_ = now.delay_microseconds;
      random.state ^= now.seed * 0x9e3779b97f4a7c15u;
    }
    if (longest_delay_ != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(longest_delay_ + 1)));
  }

  cuda_stand_in::random_bits random;
  std::mutex mutex_;
  std::condition_variable changed_;
  cuda_stand_in::command* head_ = nullptr;
  cuda_stand_in::command** tail_ = &head_;
  std::uint64_t pending_ = 0;
  bool closing_ = false;
  cuda_stand_in::completion* closed_ = nullptr; // made by close
  unsigned longest_delay_ = 0;
  std::uint64_t settings_version_ = 0;
  std::thread worker_;
};

struct CUevent_st {
  CUevent_st(int device_number, unsigned creation_flags) : device(device_number), flags(creation_flags) {}

  // The newest record, for the caller to drop; null where there has been none.
  cuda_stand_in::completion* newest() {
    std::lock_guard lock(mutex_);
    return record_ == nullptr ? nullptr : record_->share();
  }
  void replace(cuda_stand_in::completion* by) {
    std::lock_guard lock(mutex_);
    if (record_ != nullptr) record_->drop();
    record_ = by;
  }

  const int device;
  const unsigned flags;

 private:
  std::mutex mutex_;
  cuda_stand_in::completion* record_ = nullptr;
};

namespace cuda_stand_in {

struct handles {
  registry<CUstream_st> streams;
  registry<CUevent_st> events;
  std::mutex default_mutex;
  CUstream_st* default_streams[64] = {};
  std::uint64_t streams_made = 0;
};
inline handles& given_out() {
  static auto* const one = new handles;
  return *one;
}

// Until the streams that were destroyed with work in flight have done it.
inline void wait_for_closed_streams() {
  given_out().streams.each([](CUstream_st& s) { s.wait_until_closed(); });
}

// Appends `f` to the stream, for libraries that stand on this one: it runs on the stream's thread, after what
// was appended before and ahead of what comes later, and may wait for other threads. It is left out once the
// device has failed, unless `always`.
template <class F> void append(CUstream_st* stream, F f, bool always = false) {
  stream->append(std::move(f), always);
}

// An error that stays on the device until the process, or a test, begins anew; the first one counts.
inline void fail_device(int device, int code, std::string why) {
  report(std::move(why));
  int none = 0;
  device_of(device).failed_with.compare_exchange_strong(none, code);
}
// Only a test can do this: a real device stays in error until the process ends.
inline void forget_device_errors() {
  for (int d = 0; d < 64; ++d) device_of(d).failed_with.store(0);
}

} // namespace cuda_stand_in
