// SPDX-License-Identifier: Apache-2.0
//
// Which keys a query of an attention may see: those of its own document, and if it is causal none behind it.
// Documents lie one behind another in one sequence of tokens, document d being the positions
// [begins[d], begins[d + 1]), which others call cu_seqlens. Integers only; every rank computes the same, so
// that work is known before anything runs.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

namespace plateau::inline v0 {

// The positions [first, first + rows) of a sequence.
struct position_range {
  index_t first = 0;
  index_t rows = 0;

  constexpr index_t end() const { return first + rows; }
  friend constexpr bool operator==(const position_range&, const position_range&) = default;
};

enum class attention_mask : unsigned char { full, causal };

// Reads `begins`, which must outlive it. Without any, all tokens are one document. Documents may be empty.
class packed_documents {
 public:
  // Throws config_error unless begins is empty or runs from 0 to tokens and nowhere decreases.
  explicit constexpr packed_documents(index_t tokens, std::span<const index_t> begins = {})
      : tokens_(tokens), begins_(begins) {
    if (tokens < 0)
      throw config_error("plateau: packed documents: a sequence of " + std::to_string(tokens) + " tokens");
    if (begins.empty()) return;
    if (begins.front() != 0 || begins.back() != tokens)
      throw config_error("plateau: packed documents: cu_seqlens begins at " + std::to_string(begins.front()) +
                         " and ends at " + std::to_string(begins.back()) + "; expected 0 and the " +
                         std::to_string(tokens) + " tokens of the sequence");
    for (std::size_t d = 1; d < begins.size(); ++d)
      if (begins[d] < begins[d - 1])
        throw config_error("plateau: packed documents: cu_seqlens decreases from " +
                           std::to_string(begins[d - 1]) + " to " + std::to_string(begins[d]) + " at index " +
                           std::to_string(d) + "; it must never");
  }

  constexpr index_t tokens() const { return tokens_; }
  constexpr index_t count() const { return begins_.empty() ? 1 : static_cast<index_t>(begins_.size()) - 1; }
  constexpr position_range operator[](index_t document) const {
    if (begins_.empty()) return {0, tokens_};
    const auto d = static_cast<std::size_t>(document);
    return {begins_[d], begins_[d + 1] - begins_[d]};
  }
  // The document of a position of [0, tokens).
  constexpr index_t at(index_t position) const {
    if (begins_.empty()) return 0;
    return std::upper_bound(begins_.begin(), begins_.end(), position) - begins_.begin() - 1;
  }

  // The pairs of a query and a key that it sees, of these queries and these keys; both are positions of the
  // sequence.
  constexpr index_t visible_pairs(position_range queries, position_range keys, attention_mask mask) const {
    if (queries.rows == 0 || keys.rows == 0) return 0;
    index_t pairs = 0;
    const index_t last = at(std::min(queries.end(), keys.end()) - 1);
    for (index_t d = at(std::max(queries.first, keys.first)); d <= last; ++d) {
      const position_range all = (*this)[d];
      pairs += of_one(within(queries, all), within(keys, all), mask);
    }
    return pairs;
  }

 private:
  static constexpr position_range within(position_range r, position_range all) {
    const index_t first = std::max(r.first, all.first), end = std::min(r.end(), all.end());
    return {first, std::max<index_t>(0, end - first)};
  }
  static constexpr index_t of_one(position_range queries, position_range keys, attention_mask mask) {
    if (mask == attention_mask::full) return queries.rows * keys.rows;
    if (queries.rows == 0 || keys.rows == 0) return 0;
    // Queries among the keys see 1 more each; those behind all keys see all of them.
    const position_range among = within(queries, keys);
    const index_t behind = std::max<index_t>(0, queries.end() - std::max(queries.first, keys.end()));
    const index_t before = among.first - keys.first; // keys that the first of them has behind it
    return among.rows * before + triangle(among.rows) + behind * keys.rows;
  }
  // 1 + 2 + ... + n, without overflow where the result has none.
  static constexpr index_t triangle(index_t n) { return n % 2 == 0 ? n / 2 * (n + 1) : (n + 1) / 2 * n; }

  index_t tokens_;
  std::span<const index_t> begins_;
};

} // namespace plateau::inline v0
