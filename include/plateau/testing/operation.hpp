// SPDX-License-Identifier: Apache-2.0
//
// What an operation has said about itself: its name, and for each byte of its arguments what it may do to it.
// Ranges are cut into pieces without holes, one for each row of a tile.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/dry_run/access_range.hpp>
#include <plateau/host/backend.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace plateau::inline v0::testing {

using dry::touch;

struct piece {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  int argument = 0; // counted from 0
  touch mode = touch::read;
  std::size_t offset = 0; // bytes of the argument before it

  unsigned char* begin() const { return reinterpret_cast<unsigned char*>(address); }
  std::uintptr_t end() const { return address + bytes; }
};

// The tag as the program wrote it.
constexpr const char* tag_of(touch t) {
  constexpr const char* names[] = {"in(v)", "out(v)", "inout(v)", "some(v)", "accumulates(v)", "scratch"};
  return names[static_cast<std::size_t>(t)];
}

struct operation {
  const char* name = "";
  bool repeatable = true;
  std::vector<piece> pieces{};

  void add(int argument, const dry::access_range& r) {
    if (r.empty()) return;
    std::size_t offset = 0;
    for (index_t c = 0; c < r.count; ++c)
      for (index_t i = 0; i < r.rows; ++i) {
        pieces.push_back(
            {r.address + static_cast<std::size_t>(c) * r.stride + static_cast<std::size_t>(i) * r.pitch,
             r.width, argument, r.mode, offset});
        offset += r.width;
      }
  }
  template <class V, access_mode M> void add(int argument, const arg<V, M>& a) {
    add(argument, dry::range_of(a));
  }
  void add(int argument, const host::scratch_argument& s) {
    add(argument, dry::range_of(s.v, touch::scratch));
  }
  template <class Value> void add(int, const Value&) {} // a plain value is nowhere
};

template <class... Args> operation operation_of(const char* name, bool repeatable, const Args&... args) {
  operation o{name, repeatable};
  int argument = 0;
  (o.add(argument++, args), ...);
  return o;
}

// Sorts pieces by address and joins those that meet.
inline void join(std::vector<piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const piece& a, const piece& b) { return a.address < b.address; });
  std::size_t n = 0;
  for (const piece& p : pieces)
    if (n != 0 && p.address <= pieces[n - 1].end())
      pieces[n - 1].bytes = std::max(pieces[n - 1].end(), p.end()) - pieces[n - 1].address;
    else
      pieces[n++] = p;
  pieces.resize(n);
}
// Appends the parts of `from` that lie in none of `without`, which are joined.
inline void subtract(const piece& from, const std::vector<piece>& without, std::vector<piece>& to) {
  std::uintptr_t at = from.address;
  const auto keep = [&](std::uintptr_t end) {
    if (at < end) to.push_back({at, end - at, from.argument, from.mode, from.offset + (at - from.address)});
  };
  auto w = std::upper_bound(without.begin(), without.end(), at,
                            [](std::uintptr_t address, const piece& p) { return address < p.end(); });
  for (; w != without.end() && w->address < from.end(); ++w) {
    keep(w->address);
    at = w->end();
  }
  keep(from.end());
}

} // namespace plateau::inline v0::testing
