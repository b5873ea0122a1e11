// SPDX-License-Identifier: Apache-2.0
//
// Sets of ranks as words of 64 bits, any number of ranks: what a plan asks about all partners of a rank at
// once takes one operation for 64 of them.
#pragma once

#include <plateau/config.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace plateau::inline v0::detail {

using rank_word = std::uint64_t;
inline constexpr int rank_word_bits = 64;

constexpr std::size_t rank_words(int ranks) noexcept {
  return (static_cast<std::size_t>(ranks) + rank_word_bits - 1) / rank_word_bits;
}
constexpr bool has_rank(const rank_word* words, int rank) noexcept {
  return (words[rank / rank_word_bits] >> rank % rank_word_bits & 1) != 0;
}
constexpr void set_rank(rank_word* words, int rank, bool on) noexcept {
  rank_word& word = words[rank / rank_word_bits];
  const int bit = rank % rank_word_bits;
  word = (word & ~(rank_word{1} << bit)) | rank_word{on} << bit;
}
constexpr bool no_rank(const rank_word* words, std::size_t count) noexcept {
  rank_word any = 0;
  for (std::size_t w = 0; w < count; ++w) any |= words[w];
  return any == 0;
}
// The ranks twice in a row, (2 x words + 1) words: rank r is at bits r and ranks + r, so that 64 ranks from
// any one on, around the end, are ranks_from().
constexpr void set_ranks_twice(rank_word* twice, const rank_word* words, int ranks) noexcept {
  const std::size_t count = rank_words(ranks);
  std::fill(twice, twice + 2 * count + 1, 0);
  for (std::size_t w = 0; w < count; ++w) {
    const std::size_t second = static_cast<std::size_t>(ranks) + w * rank_word_bits;
    rank_word* const at = twice + second / rank_word_bits;
    twice[w] |= words[w];
    at[0] |= words[w] << second % rank_word_bits;
    if (second % rank_word_bits != 0) at[1] |= words[w] >> (rank_word_bits - second % rank_word_bits);
  }
}
constexpr rank_word ranks_from(const rank_word* twice, std::size_t first) noexcept {
  const rank_word* const at = twice + first / rank_word_bits;
  const std::size_t bit = first % rank_word_bits;
  return bit == 0 ? at[0] : at[0] >> bit | at[1] << (rank_word_bits - bit);
}
// The ranks whose rows are more than 0.
constexpr void set_ranks_with_rows(rank_word* words, const index_t* rows, std::size_t ranks) noexcept {
  for (std::size_t first = 0; first < ranks; first += rank_word_bits) {
    const std::size_t n = std::min<std::size_t>(ranks - first, rank_word_bits);
    rank_word word = 0;
    for (std::size_t i = 0; i < n; ++i) word |= rank_word{rows[first + i] > 0} << i;
    words[first / rank_word_bits] = word;
  }
}
// The ranks of one word, ascending: f(rank). f may change the set.
template <class F> constexpr void for_each_rank_in(rank_word word, std::size_t number, F&& f) {
  for (; word != 0; word &= word - 1) f(static_cast<int>(number) * rank_word_bits + std::countr_zero(word));
}
// Of all words; f may change the ranks of the word that it is in.
template <class F> constexpr void for_each_rank(const rank_word* words, std::size_t count, F&& f) {
  for (std::size_t w = 0; w < count; ++w) for_each_rank_in(words[w], w, f);
}

} // namespace plateau::inline v0::detail
