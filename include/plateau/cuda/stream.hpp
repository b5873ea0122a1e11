// SPDX-License-Identifier: Apache-2.0
//
// A stream of the CUDA backend: a cudaStream_t of ours, or one of the caller's that we only issue to. Beside
// it lives what CUDA does not keep: its name, and what its host tasks threw.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/event.hpp>
#include <plateau/cuda/host_calls.hpp>
#include <plateau/error.hpp>

#include <cuda_runtime.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace plateau::inline v0 {

// A stream of the caller's: make_stream(cuda_stream_ref{theirs}, "name"). It belongs to the backend's device
// and outlives the work that is issued to it.
struct cuda_stream_ref {
  cudaStream_t handle = nullptr;
};

namespace cudart {

// Used by one host thread at a time. The destructor of one of ours waits for everything that was issued; an
// adopted stream is its owner's to wait for, before anything goes that its work uses.
class stream {
 public:
  stream(std::shared_ptr<event_pool> pool, const char* name) : stream(std::move(pool), nullptr, name, true) {
    // Non-blocking: no order with the legacy default stream, which other code of the process may use.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  stream(std::shared_ptr<event_pool> pool, cuda_stream_ref theirs, const char* name)
      : stream(std::move(pool), theirs.handle, name, false) {}
  stream(stream&& other) noexcept
      : pool_(std::move(other.pool_)), calls_(std::move(other.calls_)),
        stream_(std::exchange(other.stream_, nullptr)), owned_(std::exchange(other.owned_, false)),
        exceptions_(other.exceptions_) {}
  stream& operator=(stream&&) = delete;
  ~stream() {
    // While an exception passes, host tasks that have not begun are skipped; the device skips nothing.
    if (calls_ && std::uncaught_exceptions() > exceptions_)
      calls_->abandon(
          {failure::kind::other, "an exception passed through the scope of stream '" + calls_->name() + "'"});
    if (!owned_ || stream_ == nullptr) return;
    forgive(cudaStreamSynchronize(stream_));
    forgive(cudaStreamDestroy(stream_));
  }

  cudaStream_t handle() const { return stream_; }
  const std::string& name() const { return calls_->name(); }
  bool owned() const { return owned_; }
  // What its host tasks have come to; may be kept longer than the stream.
  const std::shared_ptr<host_calls>& calls() const { return calls_; }

  // The event refers to what was issued before, and to the host tasks among that by their number.
  event record(source_line at = {}) {
    event e(pool_, pool_->take(), calls_, calls_->issued());
    check(cudaEventRecord(e.event_, stream_), "cudaEventRecord", at.file, at.line);
    return e;
  }
  // What comes later on this stream waits for the event, and fails if it failed. In this order: a host call
  // that asks how the other stream's calls went comes behind the wait for them.
  void wait(const event& e, source_line at = {}) {
    if (e.event_ == nullptr || e.calls_ == calls_) return; // a stream keeps its own order
    check(cudaStreamWaitEvent(stream_, e.event_, 0), "cudaStreamWaitEvent", at.file, at.line);
    host_calls::follow(calls_, stream_, e.calls_, e.ticket_, at);
  }
  // Appends host code, issued at the place `at` (see host_calls::issue). For backends and communicators.
  template <class F> void push(F f, source_line at = {}) {
    host_calls::issue(calls_, stream_, std::move(f), at);
  }

 private:
  stream(std::shared_ptr<event_pool> pool, cudaStream_t s, const char* name, bool owned)
      : pool_(std::move(pool)), calls_(std::make_shared<host_calls>(name)), stream_(s), owned_(owned),
        exceptions_(std::uncaught_exceptions()) {}

  std::shared_ptr<event_pool> pool_;
  std::shared_ptr<host_calls> calls_;
  cudaStream_t stream_;
  bool owned_;
  int exceptions_;
};

} // namespace cudart

} // namespace plateau::inline v0
