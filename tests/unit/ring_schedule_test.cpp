// SPDX-License-Identifier: Apache-2.0
//
// The ring's schedule, exhaustively for small cases: every row of every rank meets every rank exactly once,
// hop by hop from neighbour to neighbour, whatever the counts; what rotates follows the bytes.
#include <plateau/ring/ring_schedule.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::ring_schedule, pl::ring_step, pl::rotation;

namespace {

// Calls f for all vectors of `ranks` counts in [0, most].
template <class F> void each_count(int ranks, index_t most, F f) {
  std::vector<index_t> n(static_cast<std::size_t>(ranks));
  for (;;) {
    f(n);
    std::size_t i = 0;
    while (i < n.size() && n[i] == most) n[i++] = 0;
    if (i == n.size()) return;
    ++n[i];
  }
}

void check(const std::vector<index_t>& rows, index_t hop_rows) {
  const ring_schedule s(rows, hop_rows);
  const int ranks = s.ranks();
  // How often a row of a rank was at another rank.
  std::vector<std::vector<std::vector<int>>> met(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r)
    met[r].assign(rows.size(), std::vector<int>(static_cast<std::size_t>(rows[r])));
  bool right = true;
  index_t blocks_seen = 0;
  for (index_t t = 0; t < s.steps(); ++t)
    for (int r = 0; r < ranks; ++r) {
      const ring_step here = s.at(r, t);
      right = right && here.rows >= 0 && here.rows <= hop_rows && here.first >= 0 &&
              here.first + here.rows <= s.rows_of(here.owner);
      if (here.hop == 0) {
        right = right && here.owner == r && here == s.own(r, here.round);
        blocks_seen += here.rows > 0;
      } else { // came from the neighbour, who had it one step ago
        ring_step before = s.at(s.previous(r), t - 1);
        right = right && before.hop == here.hop - 1;
        before.hop = here.hop;
        right = right && before == here;
      }
      // At the end of a round it lies one hop before home.
      if (here.hop == ranks - 1) right = right && s.next(r) == here.owner;
      for (index_t i = 0; i < here.rows; ++i)
        ++met[static_cast<std::size_t>(here.owner)][static_cast<std::size_t>(r)]
             [static_cast<std::size_t>(here.first + i)];
    }
  for (const auto& owner : met)
    for (const auto& at : owner)
      for (const int times : at) right = right && times == 1;
  index_t blocks = 0, most = 0;
  for (const index_t n : rows) {
    blocks += (n + hop_rows - 1) / hop_rows;
    most = std::max(most, (n + hop_rows - 1) / hop_rows);
  }
  CHECK(right);
  CHECK(blocks_seen == blocks);
  CHECK(s.rounds() == most);
}

} // namespace

TEST_CASE("every row meets every rank once, hop by hop: all counts up to 4 of up to 4 ranks") {
  for (const int ranks : {1, 2, 3, 4})
    each_count(ranks, 4, [](const std::vector<index_t>& rows) {
      for (const index_t hop_rows : {1, 2, 3, 4, 5}) check(rows, hop_rows);
    });
}
TEST_CASE("so in larger groups, uneven and with ranks that have nothing") {
  check({7, 0, 100, 3, 0, 12, 1}, 5);
  check({0, 0, 0, 0, 0}, 3);
  check({0, 17}, 16);
  check(std::vector<index_t>(16, 33), 8);
}
TEST_CASE("V5: sizes beyond 32 bits, and the largest there are") {
  const index_t huge = std::numeric_limits<index_t>::max();
  const std::vector<index_t> rows{index_t{1} << 40, huge, 3};
  const ring_schedule s(rows, index_t{1} << 20);
  CHECK(s.rounds() == (index_t{1} << 43));
  const ring_step last = s.own(0, (index_t{1} << 20) - 1);
  CHECK(last.first == (index_t{1} << 40) - (index_t{1} << 20));
  CHECK(last.rows == index_t{1} << 20);
  CHECK(s.own(0, index_t{1} << 20).rows == 0);
  CHECK(s.own(1, s.rounds() - 1).rows == (index_t{1} << 20) - 1);
  const ring_schedule whole(rows, huge);
  CHECK(whole.rounds() == 1);
  CHECK(whole.own(1, 0).rows == huge);
  CHECK(whole.own(1, 1).rows == 0);
}
TEST_CASE("what cannot be scheduled is refused") {
  const std::vector<index_t> none, negative{3, -1}, one{1};
  CHECK_THROWS_AS(ring_schedule(none, 1), pl::config_error);
  CHECK_THROWS_AS(ring_schedule(negative, 1), pl::config_error);
  CHECK_THROWS_AS(ring_schedule(one, 0), pl::config_error);
}
TEST_CASE("shards that nobody has said anything about: [n r / ranks, n (r + 1) / ranks)") {
  for (index_t n = 0; n < 30; ++n)
    for (int ranks = 1; ranks < 12; ++ranks) {
      const pl::even_shards even{n, ranks};
      for (int r = 0; r <= ranks; ++r) CHECK(even.first(r) == n * r / ranks);
      CHECK(even.first(ranks) == n);
    }
  const pl::even_shards most{std::numeric_limits<index_t>::max(), 7};
  CHECK(most.first(7) == most.n);
}
TEST_CASE("what rotates is what moves fewer bytes, unless it is forced") {
  CHECK(cheaper_rotation(rotation::automatic, {100, 8}, {10, 81}) == rotation::activations);
  CHECK(cheaper_rotation(rotation::automatic, {100, 8}, {10, 79}) == rotation::weights);
  CHECK(cheaper_rotation(rotation::automatic, {100, 8}, {10, 80}) == rotation::activations);
  CHECK(cheaper_rotation(rotation::weights, {1, 1}, {100, 100}) == rotation::weights);
  CHECK(cheaper_rotation(rotation::activations, {100, 100}, {1, 1}) == rotation::activations);
  const index_t huge = std::numeric_limits<index_t>::max();
  CHECK(cheaper_rotation(rotation::automatic, {huge, 2}, {huge, 3}) == rotation::activations);
}
