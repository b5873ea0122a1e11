// SPDX-License-Identifier: Apache-2.0
//
// One rank's ncclComm_t, of ours or of the user's, between two threads: the host thread that issues to it,
// and the watchdog that asks after its errors and aborts it. NCCL lets one thread at a time into a
// communicator, and frees what it aborts: so every call is announced first (`in_use`), an abort waits until
// nobody is inside, and after it nobody gets in. No lock is held during a call. Aborted exactly once, or
// destroyed, or left to its owner.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/error.hpp>
#include <plateau/nccl/check.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plateau::inline v0::nccl {

enum class ownership : unsigned char { ours, adopted, adopted_and_ours_to_abort };

class handle {
 public:
  // In a user's communicator NCCL's calls may block. It is aborted although the host thread is inside a call,
  // when it has been there for longer than this: the abort is then what ends the call.
  static constexpr std::chrono::milliseconds blocked_call{200};

  handle(ncclComm_t comm, ownership whose) : comm_(comm), whose_(whose) {}
  handle(const handle&) = delete;
  handle& operator=(const handle&) = delete;

  ownership whose() const { return whose_; }
  bool abortable() const { return whose_ != ownership::adopted; }
  // Where NCCL puts a communicator that it makes in the background, and may write until that has ended: so it
  // lives as long as the one that it is made from, which for the outermost is this one itself.
  ncclComm_t& slot() { return slot_; }
  // The outermost one: NCCL has said which it is, and goes on making it. Host thread, before others know it.
  void made() { comm_ = slot_; }
  // For calls of the user's own, for instance to have NCCL's view of an error. Not after the group has
  // failed.
  ncclComm_t get() const { return comm_; }

  // While it lives, no other thread calls NCCL for this communicator, and it is not aborted. False when it is
  // gone already. `patiently`: waits for another thread, which is inside for a moment only; otherwise it is
  // false then, too.
  class in_use {
   public:
    explicit in_use(handle& of, bool patiently = true) : of_(of), entered_(of.enter(patiently)) {}
    in_use(const in_use&) = delete;
    in_use& operator=(const in_use&) = delete;
    ~in_use() {
      if (entered_) of_.leave();
    }
    explicit operator bool() const { return entered_; }

   private:
    handle& of_;
    bool entered_;
  };

  // What NCCL says of it: ncclInProgress, ncclSuccess, or an error; nothing when it is gone, or when somebody
  // else is inside and the caller has no patience. Any thread.
  std::optional<ncclResult_t> status(bool patiently = true) {
    const in_use here(*this, patiently);
    if (!here) return std::nullopt;
    ncclResult_t now = ncclSuccess;
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &now); is_failure(asked)) now = asked;
    // Before 2.26 NCCL leaves the thread that worked in the background to the next call for this communicator
    // to join, and until then takes what begins in another one of the same host thread for its work.
    int size = 0;
    if (patiently && now == ncclSuccess) static_cast<void>(ncclCommCount(comm_, &size));
    return now;
  }
  // Whoever is inside has left, and nobody gets in again: its owner may do with it what he likes. Host
  // thread, outside of any call: only the watchdog can be inside, in one that does not block.
  void release() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    idle_.notify_all();
    idle_.wait(lock, [&] { return !inside_; });
  }
  // The text of an error that status() gave.
  std::string error(ncclResult_t status, const char* call) {
    const in_use here(*this);
    return error_text(status, call, here ? comm_ : nullptr, {});
  }

  // Ends what is in flight in all of them. Any thread; of several that abort the same one, one does. Leaves
  // alone what is not ours to abort. On a thread for each: what NCCL frees for one communicator waits for the
  // kernels of the others, so all must be told first. A group of NCCL's does that too, but only from 2.22 on.
  static void abort(std::span<const std::shared_ptr<handle>> all) {
    std::vector<ncclComm_t> mine;
    std::vector<handle*> closed;
    closed.reserve(all.size());
    mine.reserve(all.size());
    for (const auto& h : all)
      if (h->comm_ != nullptr && h->abortable() && h->close()) {
        mine.push_back(h->comm_);
        closed.push_back(h.get());
      }
    if (mine.empty()) return;
    int device = 0; // NCCL sets the thread's own again when it is done, which would open device 0
    cudart::forgive(cudaGetDevice(&device));
    std::vector<std::thread> threads;
    threads.reserve(mine.size());
    try {
      while (mine.size() > 1) {
        threads.emplace_back([device, c = mine.back()] {
          cudart::forgive(cudaSetDevice(device));
          static_cast<void>(ncclCommAbort(c));
        });
        mine.pop_back();
      }
    } catch (...) { // the machine has no more of them
    }
    // What NCCL says against it is of no use to anyone: the group has failed already, with a cause.
    static_cast<void>(ncclGroupStart());
    for (const ncclComm_t c : mine) static_cast<void>(ncclCommAbort(c));
    static_cast<void>(ncclGroupEnd());
    for (std::thread& t : threads) t.join();
    for (handle* h : closed) h->end();
  }
  // Returns when those that abort() ends have ended, whichever thread does it.
  static void await_end(std::span<const std::shared_ptr<handle>> all) {
    for (const auto& h : all) {
      if (h->comm_ == nullptr || !h->abortable()) continue;
      std::unique_lock lock(h->mutex_);
      h->idle_.wait(lock, [&] { return h->ended_; });
    }
  }
  // The orderly end of one of ours in which nothing goes on any more (see world). Host thread.
  void destroy() {
    if (whose_ != ownership::ours || !close()) return;
    const ncclResult_t result = ncclCommDestroy(comm_);
    end();
    check(result, "ncclCommDestroy");
  }

 private:
  bool enter(bool patiently) {
    std::unique_lock lock(mutex_);
    if (patiently) idle_.wait(lock, [&] { return closed_ || !inside_; });
    if (closed_ || inside_) return false;
    inside_ = true;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    inside_ = false;
    idle_.notify_all();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    idle_.notify_all();
  }
  // True for the one that may end it.
  bool close() {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) return false;
    idle_.notify_all();
    const auto idle = [&] { return !inside_; };
    if (whose_ == ownership::ours)
      idle_.wait(lock, idle); // our calls do not block
    else
      idle_.wait_for(lock, blocked_call, idle);
    return true;
  }

  ncclComm_t comm_, slot_ = nullptr;
  ownership whose_;
  std::mutex mutex_;
  std::condition_variable idle_;
  bool inside_ = false;
  bool closed_ = false;
  bool ended_ = false; // NCCL has come back from its abort, or its destruction
};

} // namespace plateau::inline v0::nccl
