// SPDX-License-Identifier: Apache-2.0
//
// How much of the device an exchange of shards may take: pieces of a fixed size, in a few slots.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>

#include <limits>
#include <string>

namespace plateau::inline v0 {

// A slot holds a piece of every rank's shard, and what the other ranks send for this rank's piece: (2 ranks -
// 1) x piece_elements x 4 bytes, or one piece where there is one rank.
struct sharded_shape {
  static constexpr int most_slots = 4;

  index_t piece_elements = 0; // of each rank's shard
  int slots = 2;              // with one, nothing overlaps; three where the way back is long

  // Throws config_error with what cannot work.
  void check(const char* what) const {
    const auto refuse = [&](const char* why, index_t got) {
      throw config_error("plateau: " + std::string(what) + ": " + why + ", got " + std::to_string(got));
    };
    if (slots < 1 || slots > most_slots) refuse("slots must be 1, 2, 3 or 4", slots);
    if (piece_elements < 1) refuse("piece_elements must be at least 1", piece_elements);
  }
  // A piece of each of so many ranks. Throws config_error when 64 bits do not hold it.
  index_t of_ranks(int ranks) const {
    if (ranks > 0 && piece_elements > std::numeric_limits<index_t>::max() / ranks)
      throw config_error("plateau: sharded_reduce: pieces of " + std::to_string(piece_elements) +
                         " elements for " + std::to_string(ranks) + " ranks overflow");
    return ranks * piece_elements;
  }
  void add_to(digest& d) const { d.add(piece_elements).add(slots); }
  std::string text() const {
    return "pieces of " + std::to_string(piece_elements) + " elements in " + std::to_string(slots) + " slots";
  }

  // The largest pieces of whole grains that take at most device_bytes. Throws config_error when not even one
  // grain fits.
  static sharded_shape fitting(std::size_t device_bytes, int ranks, int slots = 2, index_t grain = 1) {
    const auto ways = static_cast<std::size_t>(2 * ranks - 1), n = static_cast<std::size_t>(slots);
    // Two parts of a slot, each rounded up.
    const std::size_t rounding = 2 * n * part_alignment;
    const std::size_t left = device_bytes > rounding ? device_bytes - rounding : 0;
    const auto most = static_cast<index_t>(left / (n * ways * sizeof(float)));
    if (grain < 1 || most < grain)
      throw config_error(
          "plateau: sharded_reduce: " + std::to_string(device_bytes) + " bytes on " + std::to_string(ranks) +
          " ranks hold " + std::to_string(slots) + " slots of " + std::to_string(most) +
          " elements, fewer than a grain of " + std::to_string(grain) + ": give it " +
          std::to_string(n * ways * sizeof(float) * static_cast<std::size_t>(grain) + rounding) + " bytes");
    return {most / grain * grain, slots};
  }
};

} // namespace plateau::inline v0
