// SPDX-License-Identifier: Apache-2.0
//
// What a rank's outermost communicator and all that are split off share: the options, and a watchdog. That is
// a thread which watches the exchanges in flight, the communicators' own errors and the group's record of
// failure. When the group has failed it aborts all of this rank's communicators: the kernels in flight then
// end, and so does whoever waits for their streams, the destructors of streams and buffers too. So it must
// not wait for the host thread, which may be in one of these.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/nccl/flight.hpp>
#include <plateau/nccl/handle.hpp>
#include <plateau/nccl/host_channel.hpp>
#include <plateau/nccl/options.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace plateau::inline v0::nccl {

class group {
 public:
  using lock_type = host::abort_record::lock_type;
  // Between two looks at what is in flight; and when nothing is.
  static constexpr std::chrono::milliseconds busy_interval{1}, idle_interval{20};

  // `channel`: the outermost. Throws backend_error when the machine has no thread for the watchdog.
  group(std::shared_ptr<host_channel> channel, nccl_options with)
      : channel_(std::move(channel)), record_(channel_->record()),
        state_(std::make_shared<rank_state>(record_)), with_(with), me_(channel_->origin(channel_->rank())) {
    try {
      watchdog_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
      throw backend_error("plateau: rank " + std::to_string(me_) +
                          ": no thread for the watchdog of an nccl_communicator: " + e.what());
    }
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() {
    flights gone;
    {
      const lock_type lock(record_->mutex());
      stopping_ = true;
      forget([](const flight&) { return true; }, gone);
      wake_.notify_all();
    }
    watchdog_.join();
  }

  const nccl_options& options() const { return with_; }
  host::abort_record& record() const { return *record_; }
  const std::shared_ptr<rank_state>& state() const { return state_; }
  // CUDA's number of this rank's GPU; before the first communicator is added.
  void on_device(int device) { device_ = device; }
  int device() const { return device_; }
  int me() const { return me_; } // in the outermost communicator
  bool failed() const {
    const lock_type lock(record_->mutex());
    return record_->aborted();
  }

  // From here on the watchdog looks after it.
  void add(std::shared_ptr<handle> h) {
    const lock_type lock(record_->mutex());
    handles_.push_back(std::move(h));
    wake_.notify_all();
  }
  void remove(const std::shared_ptr<handle>& h) {
    flights gone;
    const lock_type lock(record_->mutex());
    std::erase(handles_, h);
    forget([&](const flight& f) { return f.of == h.get(); }, gone);
  }
  void add(std::shared_ptr<flight> f) {
    const lock_type lock(record_->mutex());
    f->wait.wake = &wake_;
    f->listed.emplace(*record_, f->wait);
    flights_.push_back(std::move(f));
    wake_.notify_all();
  }

  // While it lives, the host thread is in a call of NCCL's that may block, one of an adopted communicator:
  // the watchdog then looks after the deadline.
  class blocking_call {
   public:
    blocking_call(group& g, wait_for_peers& wait) : group_(g), until_(g.with_.left_grace), wait_(wait) {
      const lock_type lock(group_.record_->mutex());
      wait_.wake = &group_.wake_;
      wait_.begun = patience::clock::now();
      listed_.emplace(*group_.record_, wait_);
      group_.call_ = this;
      group_.wake_.notify_all();
    }
    blocking_call(const blocking_call&) = delete;
    blocking_call& operator=(const blocking_call&) = delete;
    ~blocking_call() {
      const lock_type lock(group_.record_->mutex());
      group_.call_ = nullptr;
      listed_.reset();
    }
    std::optional<failure> over() { return until_.over(*group_.record_, wait_); }

   private:
    group& group_;
    patience until_;
    wait_for_peers& wait_;
    std::optional<host::abort_record::listed> listed_{};
  };

  // Returns when ready(), which is asked again and again on this thread; throws the group's failure instead,
  // which may be that of this wait, or what ready() throws. Host thread.
  template <class Ready> void await(wait_for_peers& wait, Ready ready) {
    std::condition_variable wake;
    wait.wake = &wake;
    wait.on_host_thread = true;
    wait.begun = patience::clock::now();
    // Mostly it is NCCL's own thread that is about to be done.
    while (patience::clock::now() < wait.begun + std::chrono::microseconds(300)) {
      if (ready()) return;
      std::this_thread::yield();
    }
    lock_type lock(record_->mutex());
    const host::abort_record::listed while_it_lasts{*record_, wait};
    patience until(with_.left_grace);
    for (;;) {
      record_->check(lock, me_);
      if (auto late = until.over(*record_, wait)) {
        const unlocked meanwhile(lock);
        channel_->abort(std::move(*late));
        continue;
      }
      {
        const unlocked meanwhile(lock);
        if (ready()) break;
        channel_->poll();
      }
      wake.wait_for(lock, std::chrono::microseconds(100));
    }
  }

  // The cause of the group's failure becomes `why`, unless there is one. Throws the cause. Host thread.
  // Before it throws, this rank's communicators have ended: what NCCL was still preparing in the background
  // would otherwise come into a stream that the caller destroys now, and move bytes of memory that it frees.
  [[noreturn]] void fail(failure why) {
    channel_->abort(std::move(why));
    try {
      lock_type lock(record_->mutex());
      record_->raise(lock, me_);
    } catch (...) {
      handle::await_end(abort_all());
      throw;
    }
  }
  // The same for the exception being handled, in an operation of this rank.
  [[noreturn]] void fail_with_current(const char* what, std::uint64_t sequence) {
    failure why = failure::current();
    if (why.what != failure::kind::collective) why = of_this_rank(why.text, what, sequence);
    fail(std::move(why));
  }

  // Ends what is in flight, in a group that has failed, unless another thread is about it. Returns all that
  // then end. Any thread.
  std::vector<std::shared_ptr<handle>> abort_all() {
    std::vector<std::shared_ptr<handle>> all;
    {
      const lock_type lock(record_->mutex());
      state_->given_up = true;
      all = handles_;
    }
    handle::abort(all);
    return all;
  }

 private:
  struct unlocked {
    lock_type& lock;
    explicit unlocked(lock_type& l) : lock(l) { lock.unlock(); }
    unlocked(const unlocked&) = delete;
    unlocked& operator=(const unlocked&) = delete;
    ~unlocked() { lock.lock(); }
  };
  failure of_this_rank(std::string text, const char* what, std::uint64_t sequence) const {
    return {failure::kind::collective, std::move(text), me_, what, sequence};
  }

  using flights = std::list<std::shared_ptr<flight>>;

  // Takes flights out of the record's list, which the lock guards, and puts them into `gone`, which is to end
  // without the lock: an event may be destroyed with it, for which CUDA takes a lock of its own, and that one
  // it may hold while a host call waits for ours.
  template <class Which> void forget(Which which, flights& gone) {
    for (auto at = flights_.begin(); at != flights_.end();) {
      const auto next = std::next(at);
      if (which(**at)) {
        (*at)->listed.reset();
        gone.splice(gone.end(), flights_, at);
      }
      at = next;
    }
  }

  // The watchdog's thread.
  void watch() {
    lock_type lock(record_->mutex());
    while (!stopping_) {
      std::optional<finding> found;
      try {
        found = look(lock);
      } catch (...) { // no memory for its lists
        found = finding(of_this_rank(failure::current().text, "its watchdog", 0), false);
      }
      if (found && !record_->aborted()) {
        const unlocked meanwhile(lock);
        if (found->second)
          channel_->abandon(std::move(found->first));
        else
          channel_->abort(std::move(found->first));
      }
      if (record_->aborted()) {
        forget([](const flight&) { return true; }, gone_);
        if (may_abort_now()) {
          const bool anything = !handles_.empty();
          const unlocked meanwhile(lock);
          if (anything) choose_device();
          abort_all();
        }
      }
      {
        const unlocked meanwhile(lock);
        asked_.clear();
        fronts_.clear();
        gone_.clear();
      }
      if (stopping_) break;
      const bool idle = flights_.empty() && call_ == nullptr && !record_->aborted();
      wake_.wait_for(lock, idle ? idle_interval : busy_interval);
    }
  }
  // A rank that is unwinding may still give the better cause. The others let their kernels stand until then:
  // what a stream has failed with is not taken back. Its own are ended at once, since it waits for them.
  bool may_abort_now() const {
    return !record_->provisional() || record_->cause()->failed_rank == me_ ||
           patience::clock::now() >= first_seen() + host::abort_record::grace;
  }
  patience::clock::time_point first_seen() const {
    if (!seen_) seen_ = patience::clock::now();
    return *seen_;
  }

  // For this thread, which CUDA would give device 0; what fails here shows in the next call.
  void choose_device() const { cudart::forgive(cudaSetDevice(device_)); }

  struct front { // of a communicator: its oldest flight
    std::shared_ptr<flight> oldest;
    bool begun = false;
  };
  // A failure, and whether the rank may still give a better cause.
  using finding = std::pair<failure, bool>;

  std::optional<finding> look(lock_type& lock) {
    if (record_->aborted()) return std::nullopt;
    forget([](const flight& f) { return f.end->done && !f.end->skipped; }, gone_);
    for (const auto& f : flights_)
      if (auto why = f->failed_in_stream())
        return finding(of_this_rank(std::move(why->text), f->wait.operation, f->wait.sequence), true);
    if (auto found = look_at_device(lock)) return finding(std::move(*found), false);
    if (record_->aborted()) return std::nullopt;
    if (call_ != nullptr)
      if (auto late = call_->over()) return finding(std::move(*late), false);
    for (const auto& f : flights_)
      if (f->wait.reached)
        if (auto late = f->until.over(*record_, f->wait)) {
          if (!with_.check_sizes)
            late->text +=
                "; where sizes differ NCCL hangs like this: nccl_options::check_sizes compares them";
          return finding(std::move(*late), false);
        }
    return std::nullopt;
  }

  // Asks CUDA and NCCL, without the lock. The host thread adds flights and removes handles meanwhile. Of each
  // communicator only the oldest flight can have begun.
  std::optional<failure> look_at_device(lock_type& lock) {
    asked_ = handles_;
    for (const auto& f : flights_) {
      const auto same = [&](const front& g) { return g.oldest->of == f->of; };
      if (std::none_of(fronts_.begin(), fronts_.end(), same)) fronts_.push_back({f});
    }
    std::optional<failure> found;
    {
      const unlocked meanwhile(lock);
      channel_->poll();
      for (const auto& h : asked_) {
        const auto status = h->status(false);
        if (!status || !is_failure(*status)) continue;
        found = of_this_rank(h->error(*status, "ncclCommGetAsyncError"), "an exchange in flight", 0);
        break;
      }
      if (!asked_.empty()) choose_device();
      // Of what has begun, too: a device that has failed calls no host code any more.
      for (front& f : fronts_) {
        const cudaError_t now = cudaEventQuery(f.oldest->reached.handle());
        cudart::forgive(now); // "not ready" stays behind as well, as the last error of this thread
        f.begun = now == cudaSuccess;
        if (now != cudaSuccess && now != cudaErrorNotReady && !found)
          found = of_this_rank("cudaEventQuery: " + cudart::error_text(now), "an exchange in flight", 0);
      }
    }
    for (const front& f : fronts_)
      if (f.begun && !f.oldest->wait.reached) f.oldest->begin();
    return found;
  }

  std::shared_ptr<host_channel> channel_;
  std::shared_ptr<host::abort_record> record_;
  std::shared_ptr<rank_state> state_;
  nccl_options with_;
  int device_ = -1;
  int me_;
  // Under the record's mutex:
  std::condition_variable wake_;
  std::vector<std::shared_ptr<handle>> handles_;
  flights flights_; // in the order of issue
  blocking_call* call_ = nullptr;
  bool stopping_ = false;
  mutable std::optional<patience::clock::time_point> seen_;
  // The watchdog's own:
  std::vector<std::shared_ptr<handle>> asked_;
  std::vector<front> fronts_;
  flights gone_;
  std::thread watchdog_;
};

} // namespace plateau::inline v0::nccl
