// SPDX-License-Identifier: Apache-2.0
//
// The order check of one rank: two conflicting touches of the same bytes that nothing orders are a finding,
// whatever the timing of a real run would have made of them. Order comes from three things alone: what one
// stream does comes one after another; what the host issues comes after what the host has waited for; and a
// stream that waits for an event comes after what the event's stream had been given until then. Memory that
// is read before anything wrote it, touched past its end, after it was freed, or freed too early, is a
// finding too. For one thread: the one that issues the operations of the rank.
#pragma once

#include <plateau/dry_run/access_range.hpp>
#include <plateau/dry_run/finding.hpp>
#include <plateau/dry_run/range_overlap.hpp>
#include <plateau/dry_run/touched_bytes.hpp>
#include <plateau/dry_run/vector_clock.hpp>
#include <plateau/dry_run/written_bytes.hpp>
#include <plateau/tag.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

// Which findings are kept: the first few of different operations or kinds, or all. All are counted.
enum class keep_findings : unsigned char { first_of_each, all };

class order_check {
 public:
  explicit order_check(keep_findings keep = keep_findings::first_of_each) : keep_(keep), streams_(1) {}

  // A resource gave out [address, address + bytes), which nothing else was or will be. `space` lives for the
  // whole program.
  void allocated(std::uintptr_t address, std::size_t bytes, const char* space, tag purpose) {
    freed(address);
    allocation a;
    a.number = next_allocation_++;
    a.address = address;
    a.bytes = bytes;
    a.space = space;
    a.purpose = purpose;
    a.live = std::make_unique<contents>();
    memory_.insert_or_assign(address, std::move(a));
  }
  // The host gives it back. What may still touch it is a finding, for each stream its last; what touches it
  // later is one as well.
  void freed(std::uintptr_t address) {
    const auto at = memory_.find(address);
    if (at == memory_.end() || !at->second.live) return;
    auto& a = at->second;
    report_in_flight(a);
    a.live->touched.clear(lists_);
    a.live.reset();
  }
  // The contents of these bytes are dead: they must be written before they are read. Who touched them stays
  // known, so whoever uses them next must still be ordered after that.
  void retired(std::uintptr_t p, std::size_t bytes) {
    auto* a = holder_of(p);
    if (bytes == 0 || !a || !a->live) return;
    access_range dead;
    dead.address = p;
    dead.width = std::min(bytes, a->end() - p);
    a->live->written.erase(dead);
  }
  // Memory of the caller's that no resource gave out is known from here on. Its contents are ready in the
  // order of `stream`, as if that wrote them here. Memory adopted before may be adopted again, in part or
  // with more beside it.
  void adopted(std::uintptr_t p, std::size_t bytes, int stream) {
    if (bytes == 0) return;
    know(p, bytes);
    access_range all;
    all.address = p;
    all.width = bytes;
    all.mode = touch::write;
    operation({operation_ref::adoption, 0, static_cast<std::uint16_t>(stream)}, {&all, 1});
  }

  // Streams are numbered from 1 by their makers; 0 is the host. A number may be used again once closed.
  void opened(int stream) {
    auto& s = at(stream);
    if (s.clock.join(host())) s.latest = nullptr;
  }
  // The host waits for all that the stream was given.
  void closed(int stream) { host_joins(at(stream).clock); }

  // The host issues an operation that touches `accesses` onto by.stream, or does it itself.
  void operation(operation_ref by, std::span<const access_range> accesses) {
    auto& stream = at(by.stream);
    if (by.stream != 0) stream.clock.join(host());
    const auto epoch = stream.clock.advance(by.stream);
    stream.latest = nullptr;
    if (accesses.empty()) return;
    valid_.clear();
    races_.clear();
    for (const auto& access : accesses) {
      const auto r = normal(access);
      if (r.empty()) continue;
      if (auto* a = allocation_of(r, by)) {
        valid_.emplace_back(a, r);
        check_order(*a, r, {by, epoch, r.mode}, stream.clock);
        check_values(*a, r, by);
      }
    }
    for (const auto& race : races_) note(race);
    for (const auto& [a, r] : valid_) {
      if (r.mode == touch::scratch)
        a->live->written.erase(r);
      else if (r.mode != touch::read)
        a->live->written.add(r);
    }
  }

  // An event: what the stream has been given until now, after what the host has waited for.
  clock_ref record(int stream) {
    auto& s = at(stream);
    if (stream != 0 && s.clock.join(host())) s.latest = nullptr;
    if (!s.latest) s.latest = std::make_shared<const vector_clock>(s.clock);
    return s.latest;
  }
  // The stream (0: the host) waits for an event. A default one is done.
  void wait(int stream, const clock_ref& event) {
    if (!event) return;
    auto& s = at(stream);
    if (s.clock.join(*event)) s.latest = nullptr;
  }

  // Those that are kept, in order; and how many there were.
  const std::vector<finding>& findings() const { return findings_; }
  std::uint64_t found() const { return found_; }

 private:
  static constexpr std::size_t most_kept = 256;

  struct contents {
    touched_bytes touched;
    written_bytes written;
  };
  struct allocation {
    std::uint64_t number = 0;
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    const char* space = "";
    tag purpose = tag::other;
    bool adopted = false;
    std::unique_ptr<contents> live{}; // none once freed

    std::uintptr_t end() const { return address + bytes; }
  };
  struct stream_state {
    vector_clock clock;
    clock_ref latest; // the clock as an event has it, if it has not moved since
  };

  stream_state& at(int stream) {
    const auto i = static_cast<std::size_t>(stream);
    if (i >= streams_.size()) streams_.resize(i + 1);
    return streams_[i];
  }
  const vector_clock& host() const { return streams_.front().clock; }
  void host_joins(const vector_clock& clock) {
    auto& s = streams_.front();
    if (s.clock.join(clock)) s.latest = nullptr;
  }

  // The allocation that holds address p; null if none does.
  allocation* holder_of(std::uintptr_t p) {
    const auto after = memory_.upper_bound(p);
    if (after == memory_.begin()) return nullptr;
    auto& a = std::prev(after)->second;
    return p < a.end() ? &a : nullptr;
  }
  // The same for an access; null with a finding if the access cannot be.
  allocation* allocation_of(const access_range& r, operation_ref by) {
    auto* a = holder_of(r.address);
    if (a && a->live && end_of(r) <= a->end()) return a;
    finding f;
    f.operation = by;
    f.mode = r.mode;
    f.first = r.address;
    f.last = end_of(r);
    f.kind = !a        ? finding_kind::unknown_memory
             : a->live ? finding_kind::out_of_bounds
                       : finding_kind::use_after_free;
    if (a) place(f, *a);
    note(f);
    return nullptr;
  }
  // Makes [p, p + bytes) part of adopted memory, joined with all adopted memory that it meets or adjoins.
  // Memory of a resource is known already.
  void know(std::uintptr_t p, std::size_t bytes) {
    const auto* holder = holder_of(p);
    if (holder && (!holder->adopted || p + bytes <= holder->end())) return;
    allocation joined;
    joined.number = next_allocation_;
    joined.space = "adopted";
    joined.adopted = true;
    joined.live = std::make_unique<contents>();
    auto lo = p, hi = p + bytes;
    auto next = memory_.upper_bound(p);
    if (next != memory_.begin() && std::prev(next)->second.end() >= p) --next;
    while (next != memory_.end() && next->first <= hi) {
      auto& a = next->second;
      if (!a.adopted) {
        ++next;
        continue;
      }
      lo = std::min(lo, a.address);
      hi = std::max(hi, a.end());
      joined.number = std::min(joined.number, a.number);
      joined.live->touched.take(a.live->touched);
      joined.live->written.take(a.live->written);
      next = memory_.erase(next);
    }
    joined.address = lo;
    joined.bytes = hi - lo;
    if (joined.number == next_allocation_) ++next_allocation_;
    memory_.insert_or_assign(lo, std::move(joined));
  }

  void check_order(allocation& a, const access_range& r, const touch_note& now, const vector_clock& clock) {
    a.live->touched.add(lists_, r, now, clock, host(), [&](const touch_note& old, auto first, auto last) {
      // One finding for two operations and one allocation, however many pieces their bytes are in. Where
      // there are very many operations, one may be named again.
      const auto recent = races_.size() < 64 ? races_.begin() : races_.end() - 64;
      const auto same = std::find_if(recent, races_.end(), [&](const finding& f) {
        return f.allocation == a.number && f.earlier->number == old.by.number;
      });
      if (same != races_.end()) {
        same->first = std::min(same->first, first - a.address);
        same->last = std::max(same->last, last - a.address);
        return;
      }
      finding f;
      f.operation = now.by;
      f.mode = now.mode;
      f.earlier = old.by;
      f.earlier_mode = old.mode;
      f.first = first;
      f.last = last;
      place(f, a);
      races_.push_back(f);
    });
  }
  void check_values(allocation& a, const access_range& r, operation_ref by) {
    if (!needs_values(r.mode)) return;
    const auto missing = a.live->written.missing(r);
    if (!missing) return;
    finding f;
    f.kind = finding_kind::read_before_write;
    f.operation = by;
    f.mode = r.mode;
    f.first = missing->first;
    f.last = missing->second;
    place(f, a);
    note(f);
  }
  void report_in_flight(const allocation& a) {
    races_.clear();
    a.live->touched.each(lists_, [&](const touch_note& n, auto first, auto last) {
      if (n.ordered_before(host())) return;
      finding f;
      f.kind = finding_kind::free_in_flight;
      f.earlier = n.by;
      f.earlier_mode = n.mode;
      f.first = first;
      f.last = last;
      place(f, a);
      const auto same = std::find_if(races_.begin(), races_.end(),
                                     [&](auto& x) { return x.earlier->stream == n.by.stream; });
      if (same == races_.end())
        races_.push_back(f);
      else if (same->earlier->number < n.by.number)
        *same = f;
    });
    for (const auto& f : races_) note(f);
  }

  // From addresses to bytes of the allocation.
  static void place(finding& f, const allocation& a) {
    f.allocation = a.number;
    f.allocation_bytes = a.bytes;
    f.purpose = a.purpose;
    f.space = a.space;
    f.first -= a.address;
    f.last -= a.address;
  }
  void note(const finding& f) {
    ++found_;
    if (keep_ == keep_findings::first_of_each) {
      const auto earlier = !f.earlier                                     ? std::int64_t{-1}
                           : f.earlier->number == operation_ref::adoption ? std::int64_t{-2}
                                                                          : std::int64_t{f.earlier->name};
      if (findings_.size() >= most_kept || !known_.emplace(f.kind, f.operation.name, earlier).second) return;
    }
    findings_.push_back(f);
  }

  keep_findings keep_;
  std::vector<stream_state> streams_;
  std::map<std::uintptr_t, allocation> memory_; // by address
  std::uint64_t next_allocation_ = 0;
  note_lists lists_;
  std::vector<finding> findings_;
  std::uint64_t found_ = 0;
  std::set<std::tuple<finding_kind, std::uint32_t, std::int64_t>> known_;
  // Of the operation being checked; kept for their storage.
  std::vector<std::pair<allocation*, access_range>> valid_;
  std::vector<finding> races_;
};

} // namespace plateau::inline v0::dry
