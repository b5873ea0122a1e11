// SPDX-License-Identifier: Apache-2.0
//
// Who owns which part of a long list of elements that all ranks of a group hold: the owner sums their
// gradients, keeps their optimizer state and updates them, the others get the result. Pure arithmetic on
// integers, the same on every rank. A shard is one run of elements, so that its state is one slab; a rank may
// own none.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Elements [first, first + elements) of a list.
struct element_range {
  index_t first = 0, elements = 0;
  bool operator==(const element_range&) const = default;
};

// Allocates only where it is made. Copyable.
class shard_plan {
 public:
  // One rank that owns nothing.
  shard_plan() = default;

  // As evenly as whole grains allow: the first ranks have a grain more than the others, and the last grain of
  // the list may be a short one. With fewer grains than ranks, the last ranks own nothing. Sums that are made
  // over blocks of elements keep their bits when shards are whole blocks. Throws config_error for fewer than
  // 0 elements, or fewer than 1 rank or element in a grain.
  static shard_plan even(index_t elements, int ranks, index_t grain = 1) {
    if (elements < 0 || ranks < 1 || grain < 1)
      throw config_error("plateau: shard_plan: cannot deal " + std::to_string(elements) +
                         " elements in grains of " + std::to_string(grain) + " to " + std::to_string(ranks) +
                         " ranks: expected at least 0, 1 and 1");
    const index_t grains = elements / grain + (elements % grain != 0 ? 1 : 0);
    shard_plan p;
    p.firsts_.resize(static_cast<std::size_t>(ranks) + 1);
    for (int r = 1; r <= ranks; ++r) {
      const index_t before = grains / ranks * r + std::min<index_t>(r, grains % ranks);
      p.firsts_[static_cast<std::size_t>(r)] = before == grains ? elements : before * grain;
    }
    return p;
  }
  // Of any sizes, one for each rank. Throws config_error for one below 0, for none, or when they overflow.
  static shard_plan of(std::span<const index_t> counts) {
    if (counts.empty()) throw config_error("plateau: shard_plan: a shard for each rank expected, got none");
    shard_plan p;
    p.firsts_.reserve(counts.size() + 1);
    p.firsts_.resize(1);
    for (const index_t n : counts) {
      if (n < 0 || n > std::numeric_limits<index_t>::max() - p.elements())
        throw config_error("plateau: shard_plan: rank " + std::to_string(p.firsts_.size() - 1) +
                           " cannot own " + std::to_string(n) + " elements after " +
                           std::to_string(p.elements()) + " of those before it");
      p.firsts_.push_back(p.elements() + n);
    }
    return p;
  }

  int ranks() const { return static_cast<int>(firsts_.size()) - 1; }
  index_t elements() const { return firsts_.back(); } // of all shards
  element_range of_rank(int r) const {
    const index_t first = firsts_[static_cast<std::size_t>(r)];
    return {first, firsts_[static_cast<std::size_t>(r) + 1] - first};
  }
  index_t longest() const {
    index_t most = 0;
    for (int r = 0; r < ranks(); ++r) most = std::max(most, of_rank(r).elements);
    return most;
  }

  // Shards are exchanged in pieces: piece i is what each rank has of elements [i, i + 1) * piece_elements of
  // its shard; a rank with a shorter shard has less of the last ones, or nothing.
  index_t pieces(index_t piece_elements) const {
    const index_t most = longest();
    return most / piece_elements + (most % piece_elements != 0 ? 1 : 0);
  }
  element_range piece(int r, index_t i, index_t piece_elements) const {
    const element_range shard = of_rank(r);
    const index_t before = i < shard.elements / piece_elements + 1 ? i * piece_elements : shard.elements;
    return {shard.first + before, std::min(piece_elements, shard.elements - before)};
  }

  void add_to(digest& d) const {
    d.add(firsts_.size());
    for (const index_t first : firsts_) d.add(first);
  }
  bool operator==(const shard_plan&) const = default;

 private:
  std::vector<index_t> firsts_{0, 0}; // (ranks + 1)
};

} // namespace plateau::inline v0
