// SPDX-License-Identifier: Apache-2.0
//
// Which bytes hold values: intervals, and strided pieces for what was written by columns. Column blocks that
// adjoin become one, and contiguous once they fill their matrix. Exact: what cannot be joined is compared row
// by row.
#pragma once

#include <plateau/dry_run/extent_index.hpp>
#include <plateau/dry_run/range_overlap.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

// Disjoint intervals that do not adjoin.
class interval_set {
 public:
  using interval = std::pair<std::uintptr_t, std::uintptr_t>; // [first, second)

  void add(std::uintptr_t lo, std::uintptr_t hi) {
    auto at = ends_.upper_bound(lo);
    if (at != ends_.begin() && std::prev(at)->second >= lo) {
      --at;
      if (at->second >= hi) return;
      lo = at->first;
    } else {
      at = ends_.emplace_hint(at, lo, hi);
    }
    auto next = std::next(at);
    for (; next != ends_.end() && next->first <= hi; next = ends_.erase(next))
      hi = std::max(hi, next->second);
    at->second = hi;
  }
  void erase(std::uintptr_t lo, std::uintptr_t hi) {
    auto at = ends_.upper_bound(lo);
    if (at != ends_.begin() && std::prev(at)->second > lo) --at;
    while (at != ends_.end() && at->first < hi) {
      const auto [first, last] = *at;
      if (first < lo) {
        at->second = lo;
        ++at;
      } else {
        at = ends_.erase(at);
      }
      if (last > hi) {
        ends_.emplace(hi, last);
        return;
      }
    }
  }
  // The end of the interval that holds x; x itself if none does.
  std::uintptr_t reach(std::uintptr_t x) const {
    const auto after = ends_.upper_bound(x);
    return after == ends_.begin() ? x : std::max(x, std::prev(after)->second);
  }
  // The first byte after x that is in an interval, at most `limit`. x is in none.
  std::uintptr_t next(std::uintptr_t x, std::uintptr_t limit) const {
    const auto after = ends_.upper_bound(x);
    return after == ends_.end() ? limit : std::min(limit, after->first);
  }
  void take(interval_set& other) {
    for (const auto& [lo, hi] : other.ends_) add(lo, hi);
    other.ends_.clear();
  }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;
};

// All ranges in normal form, and not empty.
class written_bytes {
 public:
  void add(const access_range& r) {
    if (r.contiguous()) {
      add(r.address, end_of(r));
    } else if (!holds_hull(r)) {
      each_block(r, [&](const access_range& block) { add_rows(block); });
    }
  }
  void erase(const access_range& r) {
    if (r.contiguous()) {
      erase(r.address, end_of(r));
      return;
    }
    std::vector<access_range> cut;
    strided_.visit(r.address, end_of(r), [&](const access_range& piece, nothing) {
      if (!overlap(piece, r)) return false;
      if (!covers(r, piece)) cut.push_back(piece);
      return true;
    });
    for (const auto& piece : cut) each_row(piece, [&](auto lo, auto hi) { intervals_.add(lo, hi); });
    each_row(r, [&](auto lo, auto hi) { intervals_.erase(lo, hi); });
  }

  // The first bytes of r that hold no value.
  std::optional<interval_set::interval> missing(const access_range& r) {
    if (holds_hull(r)) return std::nullopt;
    pieces_.clear();
    bool within_piece = false;
    strided_.visit(r.address, end_of(r), [&](const access_range& piece, nothing) {
      pieces_.push_back(piece);
      within_piece |= covers(piece, r);
      return false;
    });
    if (within_piece) return std::nullopt;
    std::optional<interval_set::interval> found;
    each_row(r, [&](auto lo, auto hi) {
      if (!found) found = missing_in(lo, hi);
    });
    return found;
  }

  void take(written_bytes& other) {
    intervals_.take(other.intervals_);
    other.strided_.each([&](const access_range& piece, nothing) { strided_.add(piece, {}); });
    other.strided_.clear();
  }

 private:
  struct nothing {};

  template <class F> static void each_row(const access_range& r, F f) {
    each_block(r, [&](const access_range& block) {
      for (index_t i = 0; i < block.rows; ++i) {
        const auto row = row_of(block, i);
        f(row.address, row.address + row.width);
      }
    });
  }
  bool holds_hull(const access_range& r) const { return intervals_.reach(r.address) >= end_of(r); }

  void add(std::uintptr_t lo, std::uintptr_t hi) {
    intervals_.add(lo, hi);
    if (strided_.empty()) return;
    strided_.visit(lo, hi, [&](const access_range& piece, nothing) { return holds_hull(piece); });
  }
  // Rows at one pitch. Joins them to pieces that they continue, until there are none.
  void add_rows(access_range r) {
    r.mode = touch::write;
    for (bool grew = true; grew && !r.contiguous();) {
      grew = false;
      // A piece that ends where r begins adjoins it, so look a little further than r goes.
      strided_.visit(r.address - r.pitch, end_of(r) + r.pitch, [&](const access_range& piece, nothing) {
        if (covers(r, piece)) return true;
        const auto both = joined(piece, r);
        if (!both) return false;
        grew |= !covers(piece, r);
        r = *both;
        return true;
      });
    }
    if (r.contiguous())
      add(r.address, end_of(r));
    else
      strided_.add(r, {});
  }
  // The union of two pieces of the same pitch, if it is one.
  static std::optional<access_range> joined(const access_range& a, const access_range& b) {
    if (a.address > b.address) return joined(b, a);
    if (a.pitch != b.pitch) return std::nullopt;
    auto r = a;
    const auto d = b.address - a.address;
    if (a.rows == b.rows && d <= a.width) { // side by side
      r.width = std::max(a.width, d + b.width);
      return normal(r);
    }
    const auto down = static_cast<index_t>(d / a.pitch);
    if (a.width == b.width && d % a.pitch == 0 && down <= a.rows) { // one above the other
      r.rows = std::max(a.rows, down + b.rows);
      return normal(r);
    }
    if (covers(a, b)) return a;
    return std::nullopt;
  }

  void erase(std::uintptr_t lo, std::uintptr_t hi) {
    if (!strided_.empty()) {
      std::vector<access_range> cut;
      strided_.visit(lo, hi, [&](const access_range& piece, nothing) {
        if (!meets(piece, lo, hi)) return false;
        if (piece.address < lo || end_of(piece) > hi) cut.push_back(piece);
        return true;
      });
      for (const auto& piece : cut) keep_outside(piece, lo, hi);
    }
    intervals_.erase(lo, hi);
  }
  // Of a piece, the rows before [lo, hi) and after it stay pieces; those that are cut become intervals.
  void keep_outside(const access_range& piece, std::uintptr_t lo, std::uintptr_t hi) {
    const auto first = detail::first_ending_after(lo, piece.address, piece.width, piece.pitch, piece.rows);
    auto after = first;
    for (; after < piece.rows; ++after) {
      const auto row = row_of(piece, after);
      if (row.address >= hi) break;
      intervals_.add(row.address, row.address + row.width);
    }
    keep_rows(piece, 0, first);
    keep_rows(piece, after, piece.rows);
  }
  void keep_rows(const access_range& piece, index_t first, index_t last) {
    if (first >= last) return;
    const auto kept = rows_of(piece, first, last);
    if (kept.contiguous())
      intervals_.add(kept.address, end_of(kept));
    else
      strided_.add(kept, {});
  }

  // Of [lo, hi), by intervals and pieces_ together.
  std::optional<interval_set::interval> missing_in(std::uintptr_t lo, std::uintptr_t hi) const {
    while (lo < hi) {
      auto end = intervals_.reach(lo);
      for (const auto& piece : pieces_) end = std::max(end, reach(piece, lo));
      if (end == lo) return interval_set::interval{lo, next(lo, hi)};
      lo = end;
    }
    return std::nullopt;
  }
  static std::uintptr_t reach(const access_range& piece, std::uintptr_t x) {
    const auto i = detail::first_ending_after(x, piece.address, piece.width, piece.pitch, piece.rows);
    if (i == piece.rows) return x;
    const auto row = row_of(piece, i);
    return row.address <= x ? row.address + row.width : x;
  }
  std::uintptr_t next(std::uintptr_t x, std::uintptr_t limit) const {
    limit = intervals_.next(x, limit);
    for (const auto& piece : pieces_) {
      const auto i = detail::first_ending_after(x, piece.address, piece.width, piece.pitch, piece.rows);
      if (i < piece.rows) limit = std::min(limit, row_of(piece, i).address);
    }
    return limit;
  }

  interval_set intervals_;
  extent_index<nothing> strided_;    // of one block each
  std::vector<access_range> pieces_; // near the bytes in question; kept for its storage
};

} // namespace plateau::inline v0::dry
