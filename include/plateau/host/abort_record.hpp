// SPDX-License-Identifier: Apache-2.0
//
// What ranks that are threads share about failing: one lock, the first cause, who waits for whom, and since
// when nothing has moved. Every wait goes through `await`, so that it ends when the group has failed, when a
// rank that it waits for has left, or when no rank has completed an operation for the length of the deadline.
// The cause is a value; each rank throws its own exception made from it. Where ranks are processes each has a
// record, derived from this one: it hears of the others while its waits sleep, and tells them what changes.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::host {

// One wait, while it lasts. Ranks are those of the outermost communicator, here and in every error.
struct wait_site {
  wait_site(int waiting_rank, const char* in_operation, std::uint64_t at_sequence)
      : rank(waiting_rank), operation(in_operation), sequence(at_sequence) {}
  virtual bool awaits(int other_rank) const = 0;
  // Where waiting is polling: what this wait can do for its own progress. Without the mutex. True: bytes are
  // moving, so that it will soon be worth while again.
  virtual bool poll() { return false; }

  int rank;
  const char* operation;
  std::uint64_t sequence;
  bool on_host_thread = false;
  std::condition_variable* wake = nullptr; // none: nobody of this process waits here
  std::chrono::steady_clock::time_point begun{};

 protected:
  ~wait_site() = default;
};

// All members but mutex() and the constructor are called with the mutex held.
class abort_record {
 public:
  using clock = std::chrono::steady_clock;
  using lock_type = std::unique_lock<std::mutex>;
  // How long a reader of a provisional cause waits for the definitive one.
  static constexpr std::chrono::seconds grace{2};

  // What is as good as for ever; more milliseconds than that the clock may be unable to count.
  static constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);

  abort_record(int ranks, std::chrono::milliseconds deadline)
      : deadline_(std::min(deadline, longest)), left_(static_cast<std::size_t>(ranks)),
        latched_(left_.size()) {
    sites_.reserve(16 * left_.size());
  }
  abort_record(const abort_record&) = delete;
  abort_record& operator=(const abort_record&) = delete;
  virtual ~abort_record() = default;

  std::mutex& mutex() { return mutex_; }
  bool aborted() const { return cause_.has_value(); }
  const std::optional<failure>& cause() const { return cause_; }
  // Whether the rank that has failed may still say better why.
  bool provisional() const { return provisional_; }

  // Records `why` unless there is a cause already, and wakes everyone. A stream reports what it saw as
  // provisional: it may only know that an exception passed through, not which. The host thread of the same
  // rank then replaces it by what it catches, or confirms it by taking part in anything.
  void abort(failure why, bool provisional = false) {
    if (cause_) {
      if (!provisional_ || provisional || cause_->failed_rank != why.failed_rank) return;
      if (cause_->text != why.text) cause_ = std::move(why);
      provisional_ = false;
      cause_changed();
      definitive_.notify_all();
      return;
    }
    cause_ = std::move(why);
    provisional_ = provisional;
    definitive_by_ = clock::now() + grace;
    cause_changed();
    wake_all();
  }
  void confirm(int rank) {
    if (!provisional_ || cause_->failed_rank != rank) return;
    provisional_ = false;
    cause_changed();
    definitive_.notify_all();
  }
  // Throws the cause; `lock` is held when it leaves. The failed rank itself does not wait for its own word.
  [[noreturn]] void raise(lock_type& lock, int reader) {
    if (cause_->failed_rank != reader)
      while (provisional_ && clock::now() < definitive_by_) sleep(lock, definitive_, definitive_by_, nullptr);
    const failure why = *cause_;
    why.raise();
  }
  [[noreturn]] void fail(lock_type& lock, int reader, failure why) {
    abort(std::move(why));
    raise(lock, reader);
  }
  // For calls of a rank's host thread: one that gets here is not unwinding.
  void check(lock_type& lock, int rank) {
    if (!aborted()) return;
    confirm(rank);
    raise(lock, rank);
  }

  // A failure that surfaces at the rank's next close_step; the first one stays.
  void latch(int rank, failure why) {
    auto& l = latched_[static_cast<std::size_t>(rank)];
    if (!l) l = std::move(why);
  }
  const std::optional<failure>& latched(int rank) const { return latched_[static_cast<std::size_t>(rank)]; }

  void leave(int rank) {
    left_[static_cast<std::size_t>(rank)] = true;
    wake_all();
  }
  // Some rank completed an operation: all deadlines start again.
  void progress() { progressed_ = clock::now(); }

  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }

  // What is said of a wait, and of one for a rank that has left.
  static std::string waits_in(const wait_site& s) {
    return "waits in '" + std::string(s.operation) + "' (operation " + std::to_string(s.sequence) + ")";
  }
  static failure left_alone(int rank, const wait_site& s) {
    return {failure::kind::collective,
            "rank " + std::to_string(rank) + " has left: it ended while rank " + std::to_string(s.rank) +
                " " + waits_in(s) + " for it",
            rank, s.operation, s.sequence};
  }

  // A wait that others can see while it lasts. await() lists its own; who polls instead lists his, with its
  // `wake` set, which is notified when the group fails and when a rank leaves.
  struct listed {
    abort_record& record;
    wait_site& site;
    listed(abort_record& r, wait_site& s) : record(r), site(s) { record.sites_.push_back(&s); }
    listed(const listed&) = delete;
    listed& operator=(const listed&) = delete;
    ~listed() {
      record.sites_.erase(std::find(record.sites_.begin(), record.sites_.end(), &site));
      record.wait_ended(site);
    }
  };
  // The failure of a wait that began at `begun`, once its deadline is over.
  std::optional<failure> overdue(const wait_site& site, clock::time_point begun) const {
    if (clock::now() < std::max(begun, progressed_) + deadline_) return std::nullopt;
    return expired(site);
  }

  // Returns when ready(); throws the group's failure instead, which may be that of this wait.
  template <class Ready>
  void await(lock_type& lock, std::condition_variable& wake, wait_site& site, Ready ready) {
    if (aborted()) surface(lock, site);
    if (ready()) return;
    site.wake = &wake;
    site.begun = clock::now();
    const listed here{*this, site};
    for (;;) {
      for (int r = 0; r < static_cast<int>(left_.size()); ++r)
        if (has_left(r) && site.awaits(r)) fail(lock, site.rank, left_alone(r, site));
      sleep(lock, wake, std::max(site.begun, progressed_) + deadline_, &site);
      if (aborted()) surface(lock, site);
      if (ready()) return;
      if (auto late = overdue(site, site.begun)) fail(lock, site.rank, std::move(*late));
    }
  }

 protected:
  // Returns when `wake` was notified, at `until`, or any time before. `site`: the wait, if it is listed.
  virtual void sleep(lock_type& lock, std::condition_variable& wake, clock::time_point until,
                     wait_site* /*site*/) {
    wake.wait_until(lock, until);
  }
  // The cause is new, or another, or not provisional any more.
  virtual void cause_changed() {}
  virtual void wait_ended(const wait_site&) {}
  clock::duration deadline() const { return deadline_; }
  clock::time_point progressed() const { return progressed_; }
  // The waits that are listed; those of other processes too, where they are, which have no `wake`.
  const std::vector<wait_site*>& sites() const { return sites_; }
  void wake_all() {
    for (const wait_site* s : sites_)
      if (s->wake != nullptr) s->wake->notify_all();
  }

 private:
  [[noreturn]] void surface(lock_type& lock, const wait_site& site) {
    if (site.on_host_thread) confirm(site.rank);
    raise(lock, site.rank);
  }
  const wait_site* site_of(int rank) const {
    const auto it = std::find_if(sites_.begin(), sites_.end(), [&](auto* s) { return s->rank == rank; });
    return it == sites_.end() ? nullptr : *it;
  }
  // Whom a site waits for: one who is not waiting himself, if there is one. -1: nobody but itself.
  int culprit_of(const wait_site& site) const {
    int first = -1;
    for (int r = 0; r < static_cast<int>(left_.size()); ++r) {
      if (!site.awaits(r)) continue;
      if (site_of(r) == nullptr) return r;
      if (first < 0) first = r;
    }
    return first;
  }
  // Follows who waits for whom to a rank that does not wait, or round a circle.
  failure expired(const wait_site& site) const {
    std::string text =
        "no rank completed an operation for " +
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(deadline_).count()) +
        " ms: rank " + std::to_string(site.rank) + " " + waits_in(site);
    std::vector<bool> seen(left_.size());
    const wait_site* at = &site;
    int blamed = site.rank;
    for (;;) {
      seen[static_cast<std::size_t>(at->rank)] = true;
      const int next = culprit_of(*at);
      if (next < 0) return result(text + " for its own earlier exchanges", at->rank, site);
      text += " for rank " + std::to_string(next);
      if (at == &site) blamed = next;
      at = site_of(next);
      if (at == nullptr) return result(text + ", which takes part in nothing", next, site);
      text += ", which " + waits_in(*at);
      if (seen[static_cast<std::size_t>(next)]) return result(text + ": a circle", blamed, site);
    }
  }
  static failure result(std::string text, int rank, const wait_site& s) {
    return {failure::kind::collective, std::move(text), rank, s.operation, s.sequence};
  }

  std::mutex mutex_;
  std::condition_variable definitive_;
  std::optional<failure> cause_;
  bool provisional_ = false;
  clock::time_point definitive_by_{}, progressed_{};
  clock::duration deadline_;
  std::vector<bool> left_;
  std::vector<std::optional<failure>> latched_;
  std::vector<wait_site*> sites_;
};

} // namespace plateau::inline v0::host
