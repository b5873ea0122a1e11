// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes that one memory space of one rank holds, by tag: now, at the peak of the total, and at the
// peak of each tag, with what every other tag held at that moment and the phase of the program. A limit makes
// it refuse before anything is allocated. Thread-safe; a few additions under a mutex per call, and never an
// allocation of its own except for the text of an error. An observer, if there is one, sees every change.
#pragma once

#include <plateau/budget_facts.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/tag.hpp>

#include <array>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>

namespace plateau::inline v0 {

// A high-water mark: how high, what was held then, and when.
struct peak {
  std::size_t bytes = 0;
  bytes_by_tag held{};
  const char* phase = "";
};

// Sees what a meter counts, change by change. Called by the thread that makes the change, while it holds the
// meter's lock: calls come one at a time, in the order of the changes, and must not ask the meter anything.
struct meter_observer {
  virtual ~meter_observer() = default;
  // From now on `t` holds `bytes`.
  virtual void held(tag t, std::size_t bytes) noexcept = 0;
  // From now on the program is in this part.
  virtual void phase(const char* name) noexcept = 0;
};

class meter {
  template <class F> auto locked(F f) const {
    const std::lock_guard lock(mutex_);
    return f();
  }

 public:
  // `space` names the memory in errors, `owner` whose it is ("rank 2"); both must outlive the meter.
  explicit meter(const char* space, const char* owner = "") : space_(space), owner_(owner) {}
  meter(const meter&) = delete;
  meter& operator=(const meter&) = delete;

  // Charges `bytes` to `t`. Throws budget_exceeded, and charges nothing, when the total would pass the limit.
  void charge(tag t, std::size_t bytes) {
    reserve(t, bytes);
    commit(t, bytes);
  }
  // A charge in two steps, around an allocation that may fail: reserved bytes count against the limit, but
  // are not held, and in no peak, before they are committed. A reservation ends with commit or withdraw.
  void reserve(tag t, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t taken = total_ + reserved_;
    if (bytes > limit_ || taken > limit_ - bytes) refuse(t, bytes);
    reserved_ += bytes;
  }
  void commit(tag t, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    reserved_ -= bytes;
    held_[slot(t)] += bytes;
    total_ += bytes;
    ++allocations_[slot(t)];
    note(t);
    tell(t);
  }
  void withdraw(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    reserved_ -= bytes;
  }
  void release(tag t, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    held_[slot(t)] -= bytes;
    total_ -= bytes;
    tell(t);
  }
  // Memory that stays where it is but changes its purpose: a part of a workspace, while a phase is open.
  void retag(tag from, tag to, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    held_[slot(from)] -= bytes;
    held_[slot(to)] += bytes;
    note(to);
    tell(from); // first what became less, so that an observer sees no total that never was
    tell(to);
  }

  void limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  // The most that `t` should hold. Nothing is refused for it: an error says what is held against it, so that
  // who has taken more than he said can be told from who asked last.
  void expect(tag t, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    expected_[slot(t)] = bytes;
  }
  // Names the part of the program that runs from here on; the text must outlive the meter (a literal).
  void phase(const char* name) {
    const std::lock_guard lock(mutex_);
    phase_ = name;
    if (observer_ != nullptr) observer_->phase(name);
  }
  // Tells the observer of every change from here on, and at once what is held now and the phase; nullptr ends
  // that. The observer must outlive the meter, or be ended before.
  void observe(meter_observer* observer) {
    const std::lock_guard lock(mutex_);
    observer_ = observer;
    for (const tag t : all_tags)
      if (held_[slot(t)] != 0) tell(t);
    if (observer_ != nullptr && *phase_ != '\0') observer_->phase(phase_);
  }
  // Forgets the peaks: they start again from what is held now.
  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    total_peak_ = {total_, held_, phase_};
    for (std::size_t i = 0; i < tag_count; ++i) tag_peaks_[i] = {held_[i], held_, phase_};
  }

  std::size_t current() const {
    return locked([&] { return total_; });
  }
  std::size_t current(tag t) const {
    return locked([&] { return held_[slot(t)]; });
  }
  bytes_by_tag held() const {
    return locked([&] { return held_; });
  }
  plateau::peak peak() const {
    return locked([&] { return total_peak_; });
  }
  plateau::peak peak(tag t) const {
    return locked([&] { return tag_peaks_[slot(t)]; });
  }
  // What is held of which limit, in words, for the error of a request that the machine refused.
  std::string budget_text() const {
    return locked([&] {
      return std::to_string(total_) + " bytes of " + space_ + " memory are held, " +
             (limit_ == std::numeric_limits<std::size_t>::max() ? std::string("without a limit")
                                                                : "of a limit of " + std::to_string(limit_));
    });
  }
  // How often memory was allocated: in all, or for one tag. A part of a workspace that changes its tag counts
  // as none.
  std::uint64_t allocations() const {
    return locked(
        [&] { return std::accumulate(allocations_.begin(), allocations_.end(), std::uint64_t{0}); });
  }
  std::uint64_t allocations(tag t) const {
    return locked([&] { return allocations_[slot(t)]; });
  }

 private:
  static constexpr std::size_t slot(tag t) { return static_cast<std::size_t>(t); }
  void note(tag t) noexcept {
    if (total_ > total_peak_.bytes) total_peak_ = {total_, held_, phase_};
    if (held_[slot(t)] > tag_peaks_[slot(t)].bytes) tag_peaks_[slot(t)] = {held_[slot(t)], held_, phase_};
  }
  void tell(tag t) noexcept {
    if (observer_ != nullptr) observer_->held(t, held_[slot(t)]);
  }
  [[noreturn]] void refuse(tag t, std::size_t bytes) const {
    std::string text = "plateau: ";
    if (*owner_ != '\0') text += std::string(owner_) + ": ";
    const budget_facts facts{t, bytes, total_ + reserved_, limit_, held_, expected_};
    text += facts.text(space_, phase_);
    throw budget_exceeded(text + " Raise the limit, or make the shape smaller.");
  }

  const char* space_;
  const char* owner_;
  mutable std::mutex mutex_;
  bytes_by_tag held_{};
  bytes_by_tag expected_ = budget_facts{}.promised; // none
  std::size_t total_ = 0, reserved_ = 0;
  std::size_t limit_ = std::numeric_limits<std::size_t>::max();
  std::array<std::uint64_t, tag_count> allocations_{};
  plateau::peak total_peak_;
  std::array<plateau::peak, tag_count> tag_peaks_;
  const char* phase_ = "";
  meter_observer* observer_ = nullptr;
};

} // namespace plateau::inline v0
