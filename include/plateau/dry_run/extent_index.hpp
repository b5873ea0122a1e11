// SPDX-License-Identifier: Apache-2.0
//
// Strided ranges found by where they lie: sorted by address within classes of similar extent, so that of
// thousands in one allocation only those near the bytes in question are looked at.
#pragma once

#include <plateau/dry_run/range_overlap.hpp>

#include <bit>
#include <map>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

template <class T> class extent_index {
 public:
  bool empty() const { return classes_.empty(); }

  void add(const access_range& where, T what) {
    const auto log2 = static_cast<int>(std::bit_width(where.extent()));
    for (auto& c : classes_) {
      if (c.log2 != log2) continue;
      c.entries.emplace(where.address, entry{where, std::move(what)});
      return;
    }
    classes_.push_back({log2, {}});
    classes_.back().entries.emplace(where.address, entry{where, std::move(what)});
  }
  // Calls f(range, value) for those that begin before `hi` and end after `lo`, and takes those out for which
  // it returns true. f adds nothing.
  template <class F> void visit(std::uintptr_t lo, std::uintptr_t hi, F f) {
    for (std::size_t i = 0; i < classes_.size();) {
      auto& c = classes_[i];
      const auto reach = std::uintptr_t{1} << c.log2; // more than any extent of the class
      auto at = c.entries.lower_bound(lo < reach ? 0 : lo - reach);
      while (at != c.entries.end() && at->first < hi) {
        auto& e = at->second;
        at = end_of(e.where) > lo && f(std::as_const(e.where), e.what) ? c.entries.erase(at) : std::next(at);
      }
      if (c.entries.empty()) {
        std::swap(c, classes_.back());
        classes_.pop_back();
      } else {
        ++i;
      }
    }
  }
  template <class F> void each(F f) const {
    for (const auto& c : classes_)
      for (const auto& [address, e] : c.entries) f(e.where, e.what);
  }
  void clear() { classes_.clear(); }

 private:
  struct entry {
    access_range where;
    T what;
  };
  struct extent_class {
    int log2; // 2^(log2 - 1) <= extent < 2^log2
    std::multimap<std::uintptr_t, entry> entries;
  };

  std::vector<extent_class> classes_; // none of them empty
};

} // namespace plateau::inline v0::dry
