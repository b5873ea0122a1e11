// SPDX-License-Identifier: Apache-2.0
//
// The high-water marks of a rank's memory, as plain data that outlives its backend, and a table of them for
// people: what was held at the peak, tag by tag, and the most that each tag held at any time.
#pragma once

#include <plateau/config.hpp>
#include <plateau/meter.hpp>
#include <plateau/tag.hpp>

#include <array>
#include <iomanip>
#include <ostream>
#include <string>

namespace plateau::inline v0 {

// Of one pool of one rank.
struct memory_peaks {
  peak total;                       // of all tags together
  std::array<peak, tag_count> tags; // by tag

  static memory_peaks of(const meter& m) {
    memory_peaks p;
    p.total = m.peak();
    for (std::size_t i = 0; i < tag_count; ++i) p.tags[i] = m.peak(all_tags[i]);
    return p;
  }
  friend bool operator==(const memory_peaks& a, const memory_peaks& b) {
    const auto same = [](const peak& x, const peak& y) {
      return x.bytes == y.bytes && x.held == y.held && std::string(x.phase) == y.phase;
    };
    bool all = same(a.total, b.total);
    for (std::size_t i = 0; i < tag_count; ++i) all = all && same(a.tags[i], b.tags[i]);
    return all;
  }
};

// A line for the peak, and one for each tag that ever held a byte. `whose` names the ranks and the pool.
inline void write_peaks(std::ostream& out, const std::string& whose, const memory_peaks& p) {
  const auto in = [](const peak& at) {
    return *at.phase == '\0' ? std::string() : std::string(", in ") + at.phase;
  };
  out << whose << ": " << p.total.bytes << " bytes at the peak" << in(p.total) << '\n';
  for (std::size_t i = 0; i < tag_count; ++i)
    if (p.tags[i].bytes != 0)
      out << "  " << std::left << std::setw(12) << name_of(all_tags[i]) << std::right << std::setw(16)
          << p.total.held[i] << " then " << std::setw(16) << p.tags[i].bytes << " at most" << in(p.tags[i])
          << '\n';
}

} // namespace plateau::inline v0
