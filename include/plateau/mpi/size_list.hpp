// SPDX-License-Identifier: Apache-2.0
//
// The sizes of a list of operations, as two ranks compare them: repeated sizes are written once with their
// number, so that thousands of equal rows are two integers.
#pragma once

#include <plateau/config.hpp>
#include <plateau/mpi/packet.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace plateau::inline v0::mpi {

class size_list {
 public:
  struct run {
    std::uint64_t size, count;
    friend bool operator==(const run&, const run&) = default;
  };

  void clear() { runs_.clear(); }
  void append(std::uint64_t size) {
    if (runs_.empty() || runs_.back().size != size) runs_.push_back({size, 0});
    ++runs_.back().count;
  }
  std::span<const run> runs() const { return runs_; }

  void write(packet_writer& to) const {
    to.number(runs_.size());
    for (const run& r : runs_) {
      to.number(r.size);
      to.number(r.count);
    }
  }
  void read(packet_reader& from) {
    runs_.resize(from.number());
    for (run& r : runs_) {
      r.size = from.number();
      r.count = from.number();
    }
  }

 private:
  std::vector<run> runs_;
};

// The first place where two lists differ, and what stands there; 0 where one has ended.
struct size_difference {
  bool found = false;
  std::uint64_t which = 0, one = 0, other = 0;
};
inline size_difference first_difference(const size_list& one, const size_list& other) {
  const auto a = one.runs(), b = other.runs();
  std::uint64_t which = 0;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const size_list::run x = i < a.size() ? a[i] : size_list::run{0, 0};
    const size_list::run y = i < b.size() ? b[i] : size_list::run{0, 0};
    if (x == y) {
      which += x.count;
      continue;
    }
    if (x.size != y.size) return {true, which, x.size, y.size};
    which += std::min(x.count, y.count); // one of the two goes on with another size, or ends
    const auto next = [i](std::span<const size_list::run> l) { return i + 1 < l.size() ? l[i + 1].size : 0; };
    return {true, which, x.count < y.count ? next(a) : x.size, y.count < x.count ? next(b) : y.size};
  }
  return {};
}

} // namespace plateau::inline v0::mpi
