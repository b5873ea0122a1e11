// SPDX-License-Identifier: Apache-2.0
//
// Sets of ranks against a list of flags, for numbers of ranks around the ends of words.
#include <plateau/all_to_all/rank_bits.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace detail = plateau::detail;
using detail::rank_word;
using plateau::index_t;

namespace {

// About a third of the ranks have rows.
std::vector<index_t> some_rows(int ranks) {
  std::vector<index_t> rows;
  for (std::uint32_t i = 0, x = 1; i < static_cast<std::uint32_t>(ranks); ++i) {
    x = x * 1664525u + 1013904223u + i;
    rows.push_back((x >> 16) % 3 == 0 ? 1 + i : 0);
  }
  return rows;
}

constexpr int sizes[] = {1, 2, 3, 31, 63, 64, 65, 100, 127, 128, 129, 200};

} // namespace

TEST_CASE("A set has the ranks that were put in, in ascending order, and no others") {
  for (const int ranks : sizes) {
    const std::vector<index_t> rows = some_rows(ranks);
    std::vector<rank_word> set(detail::rank_words(ranks), ~rank_word{0}), one_by_one(set.size());
    detail::set_ranks_with_rows(set.data(), rows.data(), rows.size());
    std::vector<int> expected, found;
    for (int r = 0; r < ranks; ++r) {
      const bool has = rows[static_cast<std::size_t>(r)] > 0;
      if (has) expected.push_back(r);
      CHECK(detail::has_rank(set.data(), r) == has);
      detail::set_rank(one_by_one.data(), r, true);
      if (!has) detail::set_rank(one_by_one.data(), r, false);
    }
    detail::for_each_rank(set.data(), set.size(), [&](int r) { found.push_back(r); });
    CHECK(found == expected);
    CHECK(one_by_one == set);
    CHECK(detail::no_rank(set.data(), set.size()) == expected.empty());
    for (const int r : expected) detail::set_rank(set.data(), r, false);
    CHECK(detail::no_rank(set.data(), set.size()));
  }
}

TEST_CASE("Ranks from any one on go around the end") {
  for (const int ranks : sizes) {
    const std::vector<index_t> rows = some_rows(ranks);
    const std::size_t words = detail::rank_words(ranks);
    std::vector<rank_word> set(words), twice(2 * words + 1, ~rank_word{0});
    detail::set_ranks_with_rows(set.data(), rows.data(), rows.size());
    detail::set_ranks_twice(twice.data(), set.data(), ranks);
    int wrong = 0;
    for (int first = 0; first < ranks; ++first)
      for (int i = 0; i < ranks; ++i) {
        const int base = i / detail::rank_word_bits * detail::rank_word_bits;
        const rank_word from = detail::ranks_from(twice.data(), static_cast<std::size_t>(first + base));
        const bool expected = rows[static_cast<std::size_t>((first + i) % ranks)] > 0;
        wrong += (from >> (i - base) & 1) != static_cast<rank_word>(expected);
      }
    CAPTURE(ranks);
    CHECK(wrong == 0);
  }
}
