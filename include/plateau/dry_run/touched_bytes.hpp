// SPDX-License-Identifier: Apache-2.0
//
// Who touched the bytes of one allocation, as far as it can still matter. A touch is forgotten once the host
// comes after it, since everything that is issued later comes after the host; and once a later touch that is
// ordered after it covers its bytes and conflicts with all that it conflicts with, since whoever races with
// the one then races with the other. Contiguous touches cut the allocation into segments, each with its own
// list; strided ones are kept whole beside them.
#pragma once

#include <plateau/dry_run/extent_index.hpp>
#include <plateau/dry_run/finding.hpp>
#include <plateau/dry_run/range_overlap.hpp>
#include <plateau/dry_run/vector_clock.hpp>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

// One access of one operation, which is the epoch'th of its stream.
struct touch_note {
  operation_ref by;
  vector_clock::epoch epoch = 0;
  touch mode = touch::read;

  bool ordered_before(const vector_clock& clock) const { return epoch <= clock.at(by.stream); }
  bool same_operation(const touch_note& other) const {
    return epoch == other.epoch && by.stream == other.by.stream;
  }
};

// Whether a conflicts with everything that b conflicts with.
constexpr bool conflicts_with_more(touch a, touch b) {
  return a == b || (a != touch::read && a != touch::accumulate);
}

// Lists of notes, all in one block of storage.
class note_lists {
 public:
  using list = std::uint32_t; // the number of its first link
  static constexpr list none = ~list{0};

  void push(list& to, const touch_note& n) {
    if (free_ == none) {
      links_.push_back({n, to});
      to = static_cast<list>(links_.size() - 1);
    } else {
      const auto made = std::exchange(free_, links_[free_].next);
      links_[made] = {n, to};
      to = made;
    }
  }
  list copy(list from) {
    list made = none;
    for (list last = none; from != none; from = links_[from].next) {
      list one = none;
      push(one, touch_note(links_[from].note)); // a copy: the links may move
      (last == none ? made : links_[last].next) = one;
      last = one;
    }
    return made;
  }
  // Takes out the notes for which f(note) is true.
  template <class F> void erase_if(list& from, F f) {
    list before = none;
    for (list at = from; at != none;) {
      const auto next = links_[at].next;
      if (f(std::as_const(links_[at].note))) {
        (before == none ? from : links_[before].next) = next;
        links_[at].next = std::exchange(free_, at);
      } else {
        before = at;
      }
      at = next;
    }
  }
  template <class F> void each(list from, F f) const {
    for (; from != none; from = links_[from].next) f(links_[from].note);
  }
  void clear(list& from) {
    erase_if(from, [](const touch_note&) { return true; });
  }
  bool same(list a, list b) const {
    for (; a != none && b != none; a = links_[a].next, b = links_[b].next) {
      const auto &x = links_[a].note, &y = links_[b].note;
      if (!x.same_operation(y) || x.mode != y.mode) return false;
    }
    return a == b;
  }

 private:
  struct link {
    touch_note note;
    list next;
  };
  std::vector<link> links_;
  list free_ = none;
};

class touched_bytes {
 public:
  // Notes that `now.by` touches r, in normal form and not empty. `clock` is what its stream comes after,
  // itself included; `host` what the host comes after. Calls report(earlier note, first, last) for touches
  // that conflict and are not ordered before, where [first, last) are bytes that both lie in.
  template <class Report>
  void add(note_lists& lists, const access_range& r, const touch_note& now, const vector_clock& clock,
           const vector_clock& host, const Report& report) {
    // A few pieces are found by where they are, each for itself: one block of rows of each of some heads,
    // say, lies within the extent of every other such block.
    if (r.contiguous() || r.rows > most_pieces / r.count) return add_one(lists, r, now, clock, host, report);
    access_range piece = r;
    piece.rows = piece.count = 1;
    for (index_t block = 0; block < r.count; ++block)
      for (index_t row = 0; row < r.rows; ++row) {
        piece.address =
            r.address + static_cast<std::size_t>(block) * r.stride + static_cast<std::size_t>(row) * r.pitch;
        add_one(lists, piece, now, clock, host, report);
      }
  }

  // Calls f(note, first, last) for all that is remembered.
  template <class F> void each(const note_lists& lists, F f) const {
    for (const auto& s : segments_)
      lists.each(s.second.notes, [&](const touch_note& n) { f(n, s.first, s.second.end); });
    strided_.each([&](const access_range& r, const touch_note& n) { f(n, r.address, end_of(r)); });
  }
  void clear(note_lists& lists) {
    for (auto& [lo, s] : segments_) lists.clear(s.notes);
    segments_.clear();
    strided_.clear();
  }
  // What another allocation, whose bytes are all different ones, remembers.
  void take(touched_bytes& other) {
    segments_.merge(other.segments_);
    other.strided_.each([&](const access_range& r, const touch_note& n) { strided_.add(r, n); });
    other.strided_.clear();
  }

 private:
  static constexpr index_t most_pieces = 16; // of a strided range that is kept as segments

  template <class Report>
  void add_one(note_lists& lists, const access_range& r, const touch_note& now, const vector_clock& clock,
               const vector_clock& host, const Report& report) {
    const auto spent = [&](const touch_note& old, auto meets_now, auto covered, auto lo, auto hi) {
      if (old.ordered_before(host)) return true;
      if (old.ordered_before(clock)) return conflicts_with_more(now.mode, old.mode) && covered();
      if (conflict(old.mode, now.mode) && meets_now())
        report(old, std::max(r.address, lo), std::min(end_of(r), hi));
      return false;
    };
    if (!strided_.empty()) {
      strided_.visit(r.address, end_of(r), [&](const access_range& where, const touch_note& old) {
        return spent(
            old, [&] { return overlap(where, r); }, [&] { return trimmed(r, where, old); }, where.address,
            end_of(where));
      });
      for (const auto& [where, old] : rest_) strided_.add(where, old);
      rest_.clear();
    }
    // The host's own touches are over when it goes on: nothing that is issued later can race with them.
    if (r.contiguous() && now.by.stream != 0) {
      add_segment(lists, r.address, end_of(r), now, [&](const touch_note& old, auto lo, auto hi) {
        return spent(
            old, [] { return true; }, [] { return true; }, lo, hi);
      });
      return;
    }
    for (auto at = first_after(r.address); at != segments_.end() && at->first < end_of(r);) {
      const auto lo = at->first, hi = at->second.end;
      access_range where;
      where.address = lo;
      where.width = hi - lo;
      lists.erase_if(at->second.notes, [&](const touch_note& old) {
        return spent(
            old, [&] { return meets(r, lo, hi); }, [&] { return covers(r, where); }, lo, hi);
      });
      at = at->second.notes == note_lists::none ? segments_.erase(at) : std::next(at);
    }
    if (now.by.stream != 0) strided_.add(r, now);
  }

  struct segment {
    std::uintptr_t end;
    note_lists::list notes = note_lists::none;
  };
  using segment_map = std::map<std::uintptr_t, segment>; // by first byte; they do not overlap
  using place = segment_map::iterator;

  // Whether nothing of `where` need be remembered as it is: r covers it, or some of its rows, and the others
  // are in rest_.
  bool trimmed(const access_range& r, const access_range& where, const touch_note& old) {
    if (covers(r, where)) return true;
    const auto [first, last] = covered_rows(r, where);
    if (first >= last) return false;
    if (first > 0) rest_.emplace_back(rows_of(where, 0, first), old);
    if (last < where.rows) rest_.emplace_back(rows_of(where, last, where.rows), old);
    return true;
  }
  place first_after(std::uintptr_t lo) {
    auto at = segments_.upper_bound(lo);
    return at != segments_.begin() && std::prev(at)->second.end > lo ? std::prev(at) : at;
  }
  // Makes x a boundary of the segment that it lies in, and gives the part from x on.
  place cut(note_lists& lists, place s, std::uintptr_t x) {
    const auto tail =
        segments_.emplace_hint(std::next(s), x, segment{s->second.end, lists.copy(s->second.notes)});
    s->second.end = x;
    return tail;
  }

  // Adds `now` to all of [lo, hi). Where spent(note, first, last) forgets all earlier touches, segments
  // become one; `run` is where the one being made begins, and `own` its node, if there is one to use again.
  template <class Spent>
  void add_segment(note_lists& lists, std::uintptr_t lo, std::uintptr_t hi, const touch_note& now,
                   const Spent& spent) {
    auto at = first_after(lo);
    if (at != segments_.end() && at->first < lo) at = cut(lists, at, lo);
    auto run = lo;
    auto own = segments_.end();
    const auto end_run = [&](std::uintptr_t end) {
      if (run == end) return;
      if (own == segments_.end()) own = segments_.emplace_hint(at, run, segment{});
      own->second.end = end;
      lists.push(own->second.notes, now);
    };
    while (at != segments_.end() && at->first < hi) {
      auto& s = at->second;
      if (s.end > hi) cut(lists, at, hi);
      bool known = false;
      lists.erase_if(s.notes, [&](const touch_note& old) {
        if (spent(old, at->first, s.end)) return true;
        known |= old.same_operation(now) && conflicts_with_more(old.mode, now.mode);
        return false;
      });
      if (s.notes == note_lists::none) {
        if (at->first == run) {
          own = at++;
        } else {
          at = segments_.erase(at);
        }
        continue;
      }
      end_run(at->first);
      run = s.end;
      own = segments_.end();
      if (!known) lists.push(s.notes, now);
      // Only within [lo, hi): columns that meet at the end of a row had better stay apart.
      const auto before = at->first == lo ? segments_.end() : std::prev(at);
      if (before != segments_.end() && before->second.end == at->first &&
          lists.same(before->second.notes, s.notes)) {
        before->second.end = s.end;
        lists.clear(s.notes);
        at = segments_.erase(at);
      } else {
        ++at;
      }
    }
    end_run(hi);
  }

  segment_map segments_;
  extent_index<touch_note> strided_;
  std::vector<std::pair<access_range, touch_note>> rest_; // of strided_, to be put back
};

} // namespace plateau::inline v0::dry
