// SPDX-License-Identifier: Apache-2.0
//
// Which positions are on which rank, exhaustively for small sequences: every position on one rank, in the
// promised order; the pairs that a rank computes, against counting them one by one; and at lengths as they
// are used, that causal work is even.
#include <plateau/ring/sequence_split.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::attention_mask, pl::index_t, pl::packed_documents, pl::position_range, pl::sequence_split;

namespace {

bool covers(const sequence_split& s) {
  std::vector<int> seen(static_cast<std::size_t>(s.tokens()));
  index_t rows = 0;
  for (int r = 0; r < s.ranks(); ++r) {
    const std::vector<index_t> positions = s.positions(r);
    if (static_cast<index_t>(positions.size()) != s.rows(r) || s.rows(r) > s.most_rows()) return false;
    for (const index_t p : positions) ++seen.at(static_cast<std::size_t>(p));
    rows += s.rows(r);
    for (const position_range& chunk : s.chunks(r))
      if (chunk.rows == 0) return false;
  }
  return rows == s.tokens() && std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; });
}

// all the ways to cut n tokens into `parts` documents, some of them empty
void each_cut(index_t n, int parts, const std::function<void(const std::vector<index_t>&)>& f,
              std::vector<index_t> begins = {0}) {
  if (parts == 1) {
    begins.push_back(n);
    return f(begins);
  }
  for (index_t b = begins.back(); b <= n; ++b) {
    auto more = begins;
    more.push_back(b);
    each_cut(n, parts - 1, f, more);
  }
}

index_t counted(const packed_documents& d, position_range q, position_range k, attention_mask mask) {
  index_t n = 0;
  for (index_t i = q.first; i < q.end(); ++i)
    for (index_t j = k.first; j < k.end(); ++j)
      n += d.at(i) == d.at(j) && (mask == attention_mask::full || j <= i);
  return n;
}

std::string refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "not refused";
}

// The largest work of a rank over the mean.
double unevenness(const sequence_split& s, const packed_documents& d, attention_mask mask) {
  double most = 0, sum = 0;
  for (int r = 0; r < s.ranks(); ++r) {
    const auto work = static_cast<double>(s.visible_pairs(r, d, mask));
    most = std::max(most, work);
    sum += work;
  }
  return most * s.ranks() / sum;
}

} // namespace

TEST_CASE("every position is on one rank, of short and uneven sequences too") {
  for (index_t n = 0; n <= 40; ++n)
    for (int ranks = 1; ranks <= 9; ++ranks) {
      CAPTURE(n);
      CAPTURE(ranks);
      const sequence_split balanced = sequence_split::balanced(n, ranks),
                           in_order = sequence_split::contiguous(n, ranks);
      CHECK(covers(balanced));
      CHECK(covers(in_order));
      index_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        CHECK(balanced.chunks(r).size() <= 2);
        CHECK(balanced.rows(r) <= n / ranks + 2);
        CHECK(balanced.rows(r) >= n / ranks - 1);
        CHECK(in_order.rows(r) - n / ranks <= 1);
        for (const index_t p : in_order.positions(r)) CHECK(p == next++);
        // The front part of a lower rank is before that of a higher one, its back part behind it.
        if (r > 0 && balanced.rows(r) > 0 && balanced.rows(r - 1) > 0 && n >= 2 * ranks) {
          CHECK(balanced.positions(r - 1).front() < balanced.positions(r).front());
          CHECK(balanced.positions(r - 1).back() > balanced.positions(r).back());
        }
      }
    }
  const auto four = sequence_split::balanced(16, 4);
  CHECK(four.positions(0) == std::vector<index_t>{0, 1, 14, 15});
  CHECK(four.positions(1) == std::vector<index_t>{2, 3, 12, 13});
  CHECK(four.positions(3) == std::vector<index_t>{6, 7, 8, 9});
  for (int r = 0; r < 4; ++r) CHECK(four.chunks(r).size() == 2); // also where they are neighbours
  CHECK(sequence_split::balanced(16, 1).chunks(0).size() == 1);
  CHECK(four.rows_of_ranks().size() == 4);
  CHECK(four == sequence_split::balanced(16, 4));
  CHECK_FALSE(four == sequence_split::contiguous(16, 4));
}

TEST_CASE("documents that are each balanced: every position on one rank, whatever they are") {
  for (index_t n = 0; n <= 9; ++n)
    for (int parts = 1; parts <= 3; ++parts)
      each_cut(n, parts, [&](const std::vector<index_t>& begins) {
        for (int ranks = 1; ranks <= 4; ++ranks)
          CHECK(covers(sequence_split::balanced(packed_documents(n, begins), ranks)));
      });
  // Many documents of one odd row each: no rank gets all of them.
  std::vector<index_t> begins{0};
  for (int d = 0; d < 60; ++d) begins.push_back(begins.back() + 1);
  const auto split = sequence_split::balanced(packed_documents(60, begins), 4);
  for (int r = 0; r < 4; ++r) CHECK(split.rows(r) == 15);
}

TEST_CASE("the ranges of some local rows are their positions, one call for each chunk") {
  const std::vector<std::vector<position_range>> chunks{{{6, 3}, {0, 2}}, {}, {{2, 4}, {9, 1}}};
  const auto s = sequence_split::of(10, chunks);
  CHECK(covers(s));
  CHECK(s.rows(1) == 0);
  CHECK(s.positions(0) == std::vector<index_t>{6, 7, 8, 0, 1});
  for (int r = 0; r < 3; ++r) {
    const auto positions = s.positions(r);
    for (index_t first = 0; first <= s.rows(r); ++first)
      for (index_t rows = 0; first + rows <= s.rows(r); ++rows) {
        index_t next = first, calls = 0;
        s.each_range(r, first, rows, [&](position_range range, index_t at) {
          CHECK(at == next);
          CHECK(range.rows > 0);
          ++calls;
          for (index_t i = 0; i < range.rows; ++i)
            CHECK(range.first + i == positions.at(static_cast<std::size_t>(next++)));
        });
        CHECK(next == first + rows);
        CHECK(calls <= static_cast<index_t>(s.chunks(r).size()));
      }
  }
}

TEST_CASE("visible pairs are those that counting finds, for documents, chunks and both masks") {
  index_t wrong = 0;
  for (index_t n = 1; n <= 7; ++n)
    each_cut(n, 3, [&](const std::vector<index_t>& begins) {
      const packed_documents documents(n, begins);
      for (index_t q = 0; q <= n; ++q)
        for (index_t qn = 0; q + qn <= n; ++qn)
          for (index_t k = 0; k <= n; ++k)
            for (index_t kn = 0; k + kn <= n; ++kn)
              for (const auto mask : {attention_mask::full, attention_mask::causal})
                wrong += documents.visible_pairs({q, qn}, {k, kn}, mask) !=
                         counted(documents, {q, qn}, {k, kn}, mask);
    });
  CHECK(wrong == 0);
  const packed_documents all(7);
  CHECK(all.count() == 1);
  CHECK(all.visible_pairs({0, 7}, {0, 7}, attention_mask::causal) == 28);
  CHECK(all.visible_pairs({0, 7}, {0, 7}, attention_mask::full) == 49);
  // The ranks together see all of it; at a length whose square needs 62 bits.
  const index_t n = index_t{1} << 31;
  const auto s = sequence_split::balanced(n, 7);
  index_t pairs = 0;
  for (int r = 0; r < 7; ++r) pairs += s.visible_pairs(r, packed_documents(n), attention_mask::causal);
  CHECK(pairs == n / 2 * (n + 1));
}

TEST_CASE("causal work is even to 2% over 2 to 8 ranks, where one behind another it is not") {
  for (const index_t n : {2048, 8192, 8191, 10007, 131072, 1048576})
    for (int ranks = 2; ranks <= 8; ++ranks) {
      CAPTURE(n);
      CAPTURE(ranks);
      const packed_documents one(n);
      CHECK(unevenness(sequence_split::balanced(n, ranks), one, attention_mask::causal) < 1.02);
      CHECK(unevenness(sequence_split::contiguous(n, ranks), one, attention_mask::causal) > 1.4);
      CHECK(unevenness(sequence_split::balanced(n, ranks), one, attention_mask::full) < 1.02);
    }
  // Packed: lengths as of a corpus of texts.
  std::vector<index_t> begins{0};
  for (std::uint64_t d = 0; begins.back() < 65536; ++d)
    begins.push_back(
        std::min<index_t>(65536, begins.back() + 16 + static_cast<index_t>(d * 2654435761U % 9973)));
  const packed_documents texts(65536, begins);
  for (int ranks = 2; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    const auto each = sequence_split::balanced(texts, ranks);
    CHECK(unevenness(each, texts, attention_mask::causal) < 1.02);
    CHECK(unevenness(each, texts, attention_mask::full) < 1.02);
    CHECK(each.most_rows() <= 65536 / ranks + 65536 / ranks / 50);
  }
}

TEST_CASE("P3: shards that are not the sequence, and documents that decrease or end elsewhere, are refused") {
  const auto split = [](std::vector<std::vector<position_range>> chunks) {
    return refused([&] { sequence_split::of(10, chunks); });
  };
  CHECK(split({{{0, 4}}, {{4, 5}}}) == "plateau: sequence split: no rank has 1 rows from position 9 of a "
                                       "sequence of 10 tokens; the shards must add up to it");
  CHECK(split({{{0, 4}}, {{5, 5}}}).find("no rank has 1 rows from position 4") != std::string::npos);
  CHECK(split({}).find("0 ranks") != std::string::npos);
  CHECK(split({{}}).find("no rank has 10 rows from position 0") != std::string::npos);
  CHECK(split({{{0, 6}}, {{5, 5}}})
            .find("5 rows from position 5 of rank 1 begins before position 6, where a "
                  "chunk of rank 0 ends") != std::string::npos);
  CHECK(split({{{0, 6}, {6, 5}}}).find("rank 0 has 5 rows from position 6 of a sequence of 10 tokens") !=
        std::string::npos);
  CHECK(split({{{-1, 11}}}).find("rank 0 has 11 rows from position -1") != std::string::npos);
  CHECK(split({{{1, std::numeric_limits<index_t>::max()}}}).find("rank 0 has") != std::string::npos);
  CHECK(refused([] { sequence_split::balanced(-1, 2); }).find("a sequence of -1 tokens") !=
        std::string::npos);
  CHECK(refused([] { sequence_split::contiguous(8, 0); }).find("8 tokens over 0 ranks") != std::string::npos);

  const auto documents = [](std::vector<index_t> begins) {
    return refused([&] { packed_documents(10, begins); });
  };
  CHECK(documents({0, 3, 3, 10}) == "not refused");
  CHECK(documents({0, 4, 3, 10}) == "plateau: packed documents: cu_seqlens decreases from 4 to 3 at index 2; "
                                    "it must never");
  CHECK(documents({0, 4, 9}).find("begins at 0 and ends at 9; expected 0 and the 10 tokens") !=
        std::string::npos);
  CHECK(documents({1, 10}).find("begins at 1") != std::string::npos);
  CHECK(documents({0}).find("ends at 0") != std::string::npos);
  CHECK(refused([] { packed_documents(-2); }).find("a sequence of -2 tokens") != std::string::npos);
}
