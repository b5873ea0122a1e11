// SPDX-License-Identifier: Apache-2.0
//
// Events by value. Each is a cudaEvent_t out of a pool that all streams of a backend share, so that recording
// one costs nothing but the record; it goes back when the event does. That is safe while streams still wait
// for it: a wait refers to the record that was the latest when it was issued, not to what the event is used
// for later.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/host_calls.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace plateau::inline v0::cudart {

// Any thread may give events back. Without timing: such events are cheaper to record and to wait for.
class event_pool {
 public:
  event_pool() = default;
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;
  ~event_pool() {
    for (const cudaEvent_t e : idle_) forgive(cudaEventDestroy(e));
  }

  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        const cudaEvent_t e = idle_.back();
        idle_.pop_back();
        return e;
      }
      if (made_ == idle_.capacity()) idle_.reserve(std::max<std::size_t>(16, 2 * made_)); // for give_back
      ++made_; // should it fail there is room for one too many
    }
    cudaEvent_t made = nullptr; // without the lock: no lock of ours is held while CUDA takes one of its own
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return made;
  }
  void give_back(cudaEvent_t e) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back(e); // there is room for all that were made
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
  std::size_t made_ = 0;
};

// Everything issued to a stream up to some point. A default event counts as done. Movable; outlives its
// stream and its backend.
class event {
 public:
  event() = default;
  event(event&& other) noexcept
      : pool_(std::move(other.pool_)), event_(std::exchange(other.event_, nullptr)),
        calls_(std::move(other.calls_)), ticket_(other.ticket_) {}
  event& operator=(event&& other) noexcept {
    event gone(std::move(*this));
    pool_ = std::move(other.pool_);
    event_ = std::exchange(other.event_, nullptr);
    calls_ = std::move(other.calls_);
    ticket_ = other.ticket_;
    return *this;
  }
  ~event() {
    if (event_ != nullptr) pool_->give_back(event_);
  }

  // Null for a default event.
  cudaEvent_t handle() const { return event_; }
  // Blocks the calling thread; throws the failure that a host task of the event's stream had by then, and
  // backend_error when the device failed.
  void wait() const {
    if (event_ == nullptr) return;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    calls_->raise(ticket_);
  }

 private:
  friend class stream;
  event(std::shared_ptr<event_pool> pool, cudaEvent_t e, std::shared_ptr<host_calls> calls,
        std::uint64_t ticket)
      : pool_(std::move(pool)), event_(e), calls_(std::move(calls)), ticket_(ticket) {}

  std::shared_ptr<event_pool> pool_;
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<host_calls> calls_; // of the stream
  std::uint64_t ticket_ = 0;
};

} // namespace plateau::inline v0::cudart
