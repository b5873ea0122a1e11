// SPDX-License-Identifier: Apache-2.0
//
// The published algorithm, as it is: beside a version that follows its description word by word, and with the
// weaknesses that it is known for.
#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/all_to_all/published_placement.hpp>
#include <plateau/testing/random_choice.hpp>

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

using plateau::expert_homes;
using plateau::index_t;
using plateau::moved_piece;
using plateau::placement_options;
using plateau::placement_plan;
using plateau::placement_policy;
using plateau::published_placement;
using random_numbers = plateau::testing::random_numbers;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

struct sent {
  std::vector<moved_piece> pieces; // as they were decided on, one after another
  std::vector<index_t> loads;
};

// Experts by load. The home takes what fits beside what it has and what it will have; the rest goes to the
// others, the least loaded first, as much as fits, where that is not less than the least piece or is all the
// rest; if nobody can take any, the least loaded takes it all.
sent by_description(const expert_homes& homes, const std::vector<index_t>& rows, index_t capacity,
                    index_t least_piece) {
  sent result{{}, std::vector<index_t>(at(homes.ranks), 0)};
  std::vector<index_t> order(rows.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](index_t a, index_t b) { return rows[at(a)] > rows[at(b)]; });
  std::vector<bool> decided(rows.size(), false);
  const auto load = [&](int rank) {
    index_t all = result.loads[at(rank)];
    for (index_t e = 0; e < homes.experts; ++e)
      if (homes.home(e) == rank && !decided[at(e)]) all += rows[at(e)];
    return all;
  };
  for (const index_t e : order) {
    const int home = homes.home(e);
    decided[at(e)] = true;
    if (homes.ranks == 1) {
      result.loads[0] += rows[at(e)];
      continue;
    }
    index_t left = rows[at(e)];
    const index_t kept = std::min(left, std::max<index_t>(0, capacity - load(home)));
    result.loads[at(home)] += kept;
    left -= kept;
    while (left > 0) {
      std::vector<int> others;
      for (int r = 0; r < homes.ranks; ++r)
        if (r != home) others.push_back(r);
      std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return load(a) < load(b); });
      int taker = others.front();
      index_t taken = left;
      for (const int r : others) {
        const index_t part = std::min(left, capacity - load(r));
        if (part <= 0 || (part < least_piece && part < left)) continue;
        taker = r;
        taken = part;
        break;
      }
      result.pieces.push_back({e, taker, taken});
      result.loads[at(taker)] += taken;
      left -= taken;
    }
  }
  return result;
}

std::vector<moved_piece> copy(std::span<const moved_piece> pieces) { return {pieces.begin(), pieces.end()}; }
std::vector<index_t> copy(std::span<const index_t> values) { return {values.begin(), values.end()}; }

} // namespace

TEST_CASE("20,000 random profiles: the same as the description, word by word") {
  random_numbers random(12);
  index_t duplicates = 0, moved = 0, over_capacity = 0;
  for (int i = 0; i < 20'000; ++i) {
    const expert_homes homes{1 + static_cast<index_t>(random.below(20)),
                             1 + static_cast<int>(random.below(8))};
    published_placement placement(homes);
    std::vector<index_t> rows(at(homes.experts));
    const std::size_t scale = std::size_t{1} << random.below(12);
    for (index_t& n : rows) n = random.chance(40) ? 0 : static_cast<index_t>(random.below(scale));
    if (random.chance(128)) rows[random.below(rows.size())] *= static_cast<index_t>(random.below(60));
    const index_t total = std::accumulate(rows.begin(), rows.end(), index_t{0});
    const index_t capacity = total / homes.ranks * static_cast<index_t>(4 + random.below(4)) / 4;
    const index_t least_piece = index_t{1} << random.below(11);

    const sent expected = by_description(homes, rows, capacity, least_piece);
    std::map<std::pair<index_t, int>, index_t> merged;
    for (const moved_piece& p : expected.pieces) merged[{p.expert, p.rank}] += p.rows;
    std::vector<moved_piece> pieces;
    for (const auto& [where, n] : merged) pieces.push_back({where.first, where.second, n});

    REQUIRE(copy(placement.make(rows, capacity, least_piece)) == pieces);
    REQUIRE(copy(placement.loads()) == expected.loads);
    REQUIRE(placement.duplicates() == static_cast<index_t>(expected.pieces.size() - pieces.size()));
    REQUIRE(std::accumulate(expected.loads.begin(), expected.loads.end(), index_t{0}) == total);
    duplicates += placement.duplicates();
    moved += static_cast<index_t>(pieces.size());
    for (const index_t n : expected.loads) over_capacity += n > capacity ? 1 : 0;
  }
  // Its weaknesses are there to be seen.
  CHECK(moved > 20'000);
  CHECK(duplicates > 100);
  CHECK(over_capacity > 1'000);
}

TEST_CASE("D13: counts [5, 0] on 2 ranks at a capacity of 2: one expert's weights are sent twice") {
  const std::vector<index_t> rows{5, 0};
  published_placement placement(expert_homes{2, 2});
  const auto pieces = copy(placement.make(rows, 2, 1));
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0] == moved_piece{0, 1, 3}); // 2 that fit, 1 that is forced
  CHECK(placement.duplicates() == 1);
  CHECK(copy(placement.loads()) == std::vector<index_t>{2, 3});
}

TEST_CASE("D14: counts [1000, 0 x 7] on 8 ranks with a least piece of 1,024: 875 on one rank") {
  const std::vector<index_t> rows{1000, 0, 0, 0, 0, 0, 0, 0};
  published_placement placement(expert_homes{8, 8});
  const auto pieces = copy(placement.make(rows, 125, 1024));
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0] == moved_piece{0, 1, 875});
}

TEST_CASE("pieces too small for the least piece leave 5.4 times the mean on one rank") {
  const std::vector<index_t> rows{311, 145, 111, 133, 156, 177, 4724, 165};
  published_placement placement(expert_homes{8, 8});
  placement.make(rows, 740, 1024);
  CHECK(*std::max_element(placement.loads().begin(), placement.loads().end()) == 3984);
}

TEST_CASE("a rank with few rows of its own holds as many foreign experts as there are hot ones") {
  // Rank 0 is home to 16 hot experts, the other one to none that is used.
  std::vector<index_t> rows(32, 0);
  std::fill(rows.begin(), rows.begin() + 16, 4096);
  placement_options options;
  options.policy = placement_policy::published_least_loaded;
  placement_plan plan(2, 32, options);
  CHECK(plan.make(rows).size() == 8);
  CHECK(plan.largest_load() == 8 * 4096);
}

TEST_CASE("through the plan: merged, counted, told; threshold and capacity hold for it too") {
  placement_options options;
  options.policy = placement_policy::published_least_loaded;
  options.least_piece_rows = 1;
  const std::vector<index_t> rows{5, 0};
  placement_plan plan(2, 2, options);
  CHECK(plan.make(rows).size() == 1);
  CHECK(plan.duplicates() == 1);
  CHECK(copy(plan.loads()) == std::vector<index_t>{2, 3});
  CHECK(std::string(plan.reason()) ==
        "pieces moved: 1, largest load: 3 rows, without moving: 5, mean: 2; weights "
        "sent twice to one rank: 1, merged");
  plan.make(std::vector<index_t>{1, 1});
  CHECK(plan.duplicates() == 0);
  options.capacity_millionths = 1'200'000; // 3 rows
  placement_plan wider(2, 2, options);
  CHECK(copy(wider.make(rows)) == std::vector<moved_piece>{{0, 1, 2}});
  CHECK(wider.duplicates() == 0);
  options.threshold_millionths = 2'000'000;
  placement_plan stays(2, 2, options);
  CHECK(stays.make(rows).empty());
  CHECK(copy(stays.loads()) == std::vector<index_t>{5, 0});
}

TEST_CASE("one rank, more ranks than experts, no rows") {
  placement_options options;
  options.policy = placement_policy::published_least_loaded;
  placement_plan one(1, 3, options);
  CHECK(one.make(std::vector<index_t>{1, 2, 3}).empty());
  CHECK(one.largest_load() == 6);
  placement_plan many(6, 2, options);
  many.make(std::vector<index_t>{12'000, 0});
  CHECK(many.largest_load() == 2'000);
  CHECK(many.moves().size() == 5);
  CHECK(many.make(std::vector<index_t>{0, 0}).empty());
  published_placement alone(expert_homes{3, 1});
  CHECK(alone.make(std::vector<index_t>{1, 2, 3}, 1, 1).empty());
  CHECK(copy(alone.loads()) == std::vector<index_t>{6});
}
