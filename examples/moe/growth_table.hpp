// SPDX-License-Identifier: Apache-2.0
//
// What memory grows with, as numbers: the peaks of a configuration beside those of one that has twice as much
// of one thing, and the same with nothing flattened. growth.hpp finds them, growth_report.hpp shows them.
#pragma once

#include "options.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

enum class growth_kind : unsigned char { token, layer, expert, parameter, vocabulary_entry, rank };
inline constexpr std::array<growth_kind, 6> all_growth_kinds{growth_kind::token,
                                                             growth_kind::layer,
                                                             growth_kind::expert,
                                                             growth_kind::parameter,
                                                             growth_kind::vocabulary_entry,
                                                             growth_kind::rank};

constexpr std::string_view name_of(growth_kind kind) {
  constexpr std::string_view names[] = {"token", "layer", "expert", "parameter", "vocabulary entry", "rank"};
  return names[static_cast<std::size_t>(kind)];
}

// Device bytes of the rank that holds most, for each tag by itself and for all together. Tags are highest at
// different times, so they do not add up.
struct device_peaks {
  std::map<std::string, std::int64_t> tags; // as plateau::name_of has them
  std::int64_t total = 0;
};

// One configuration and the same with twice as much of one thing.
struct growth_pair {
  device_peaks at, doubled;

  std::int64_t added() const { return doubled.total - at.total; }
  std::int64_t added(const std::string& tag) const { return of(doubled, tag) - of(at, tag); }
  // The tag that grew most; empty where none grew. Not the workspace, which is what the others have reserved:
  // it grows where one of them does.
  std::string fastest() const {
    std::string name;
    std::int64_t most = 0;
    for (const auto& [tag, bytes] : doubled.tags)
      if (tag != "workspace" && added(tag) > most) {
        most = added(tag);
        name = tag;
      }
    return name;
  }

 private:
  static std::int64_t of(const device_peaks& p, const std::string& tag) {
    const auto found = p.tags.find(tag);
    return found == p.tags.end() ? 0 : found->second;
  }
};

struct growth_row {
  growth_kind kind = growth_kind::token;
  std::string step;       // "--context 256 to 512"
  double units = 0;       // of the kind that doubling adds, as unit_of says
  std::string impossible; // why there is no such configuration, or empty; then the rest means nothing
  growth_pair given, none;
};

struct growth_table {
  options config;
  std::vector<growth_row> rows; // one of each kind, in their order

  // The row whose doubling adds most to the peak: the next wall. Null where nothing adds anything.
  const growth_row* next_wall() const {
    const growth_row* most = nullptr;
    for (const growth_row& row : rows)
      if (row.impossible.empty() && row.given.added() > (most == nullptr ? 0 : most->given.added()))
        most = &row;
    return most;
  }
};

// What one of a kind is.
constexpr std::string_view unit_of(growth_kind kind) {
  constexpr std::string_view units[] = {
      "token that a rank computes at a time, all of them in longer sequences",
      "layer",
      "expert of each layer, over all ranks",
      "parameter of experts that a rank holds, by wider experts",
      "entry of the vocabulary",
      "rank, with as many sequences and experts of its own as the others have"};
  return units[static_cast<std::size_t>(kind)];
}

} // namespace moe
