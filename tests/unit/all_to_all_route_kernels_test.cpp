// SPDX-License-Identifier: Apache-2.0
//
// Ids, keys and positions of the dispatch: every kernel against a plain loop, the order of a spread group
// exhaustively where it is small and by its inverse where it is as large as numbers go, and slots of many
// blocks placed in several launches.

#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/all_to_all/route_kernels.hpp>
#include <plateau/host/group_by_key.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

using plateau::index_t;
using namespace support;
namespace dispatch = plateau::detail::dispatch;

namespace {

constexpr auto lowest_id = std::numeric_limits<std::int32_t>::min();
constexpr auto highest_id = std::numeric_limits<std::int32_t>::max();

std::vector<std::int32_t> random_ids(index_t routes, index_t experts, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int32_t> out;
  for (index_t i = 0; i < routes; ++i)
    out.push_back(static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(experts + 1)) - 1);
  return out;
}

// (first offending route + 1, its id) by the two kernels.
std::vector<std::int64_t> offender(const std::vector<std::int32_t>& ids, index_t experts,
                                   plateau::cpu_level level) {
  const auto routes = static_cast<index_t>(ids.size());
  std::vector<std::int64_t> first(static_cast<std::size_t>(dispatch::offender_blocks(routes)), -7),
      answer(2, -7);
  run_rows(level, dispatch::offender_blocks(routes), dispatch::first_offender_blocks{experts}, all(ids),
           all(first));
  run_rows(level, 1, dispatch::first_offender_of_all{}, all(std::as_const(first)), all(ids), all(answer));
  return answer;
}

// Which ordinal the number v has among [0, n) in strides: the numbers of all smaller remainders, then its
// own.
index_t ordinal(index_t v, index_t n, index_t stride) {
  const index_t remainder = v % stride;
  return remainder * (n / stride) + std::min(remainder, n % stride) + v / stride;
}

// What one rank sends: routes grouped by expert, and the rounds in which parts of the groups leave.
struct sending {
  std::vector<std::int32_t> order;
  std::vector<std::int64_t> offsets;
  std::vector<std::vector<dispatch::slot_block>> rounds;
  std::vector<index_t> rows_of_round;

  sending(const std::vector<std::int32_t>& ids, index_t experts, index_t most_rows, std::uint64_t seed)
      : order(ids.size()), offsets(static_cast<std::size_t>(experts + 2)) {
    std::vector<std::int32_t> keys(ids.size());
    for (const auto level : cpu_levels()) // the last level's keys
      run_elements(level, static_cast<index_t>(ids.size()), dispatch::route_key{experts}, all(ids),
                   all(keys));
    std::vector<std::int64_t> next(static_cast<std::size_t>(experts + 2));
    plateau::host::group_by_key(all(std::as_const(keys)), all(order), all(offsets), next.data());

    std::mt19937_64 engine(seed);
    std::vector<index_t> gone(static_cast<std::size_t>(experts), 0);
    for (index_t left = offsets[static_cast<std::size_t>(experts)]; left > 0;) {
      std::vector<dispatch::slot_block> round;
      index_t row = 0;
      for (index_t e = 0; e < experts && row < most_rows; ++e) {
        const auto at = static_cast<std::size_t>(e);
        const index_t group = offsets[at + 1] - offsets[at], rest = group - gone[at];
        index_t rows = std::min(rest, most_rows - row);
        if (rows > 0) rows = static_cast<index_t>(engine() % static_cast<std::uint64_t>(rows + 1));
        if (rows == 0 && engine() % 2 == 0) continue; // and sometimes a block without rows
        round.push_back({offsets[at], group, gone[at], row});
        gone[at] += rows;
        row += rows;
      }
      left -= row;
      if (row > 0) rounds.push_back(round);
      rows_of_round.resize(rounds.size(), row);
    }
  }
};

template <int N> void check_placement(index_t routes, index_t experts, index_t most_rows, index_t stride) {
  CAPTURE(routes);
  CAPTURE(experts);
  CAPTURE(stride);
  const auto ids = random_ids(routes, experts, static_cast<std::uint64_t>(routes + stride));
  const sending plan(ids, experts, most_rows, 5);
  for (const auto level : cpu_levels()) {
    std::vector<std::int32_t> position(ids.size(), -1), expected_position(ids.size(), -1);
    index_t base = 0;
    for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
      const auto& round = plan.rounds[r];
      const index_t rows = plan.rows_of_round[r];
      std::vector<std::int32_t> slot_route(static_cast<std::size_t>(rows), -5), expected;
      for (std::size_t first = 0; first < round.size(); first += N) {
        dispatch::place_routes<N> place;
        const std::size_t last = std::min(round.size(), first + N);
        for (std::size_t b = first; b < last; ++b) place.blocks.block[place.blocks.count++] = round[b];
        place.first_row = round[first].slot_first;
        place.base = base;
        place.stride = stride;
        const index_t end = last < round.size() ? round[last].slot_first : rows;
        run_elements(level, end - place.first_row, place, all(plan.order),
                     all(slot_route).sub(place.first_row, end - place.first_row), all(position));
      }
      for (std::size_t b = 0; b < round.size(); ++b) {
        const index_t end = b + 1 < round.size() ? round[b + 1].slot_first : rows;
        std::vector<std::int32_t> group; // as it travels
        for (index_t from = 0; from < stride && from < round[b].group_rows; ++from)
          for (index_t v = from; v < round[b].group_rows; v += stride)
            group.push_back(plan.order[static_cast<std::size_t>(round[b].group_first + v)]);
        for (index_t row = round[b].slot_first; row < end; ++row) {
          const std::int32_t route =
              group[static_cast<std::size_t>(round[b].first_in_group + row - round[b].slot_first)];
          expected.push_back(route);
          expected_position[static_cast<std::size_t>(route)] = static_cast<std::int32_t>(base + row);
        }
      }
      REQUIRE(slot_route == expected);
      REQUIRE(position == expected_position);
      base += rows;
    }
    // Every route has travelled once, and those of no expert never.
    std::vector<int> seen(static_cast<std::size_t>(base), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      REQUIRE((position[i] >= 0) == (ids[i] >= 0));
      if (position[i] >= 0) ++seen[static_cast<std::size_t>(position[i])];
    }
    REQUIRE(std::count(seen.begin(), seen.end(), 1) == base);
  }
}

} // namespace

TEST_CASE("D10: routes without an expert, and ids that name none, go behind all groups") {
  for (const index_t experts : {1, 8, 300}) // D15: more than bf16 tells apart
    for (const index_t routes : {0, 1, 31, 33, 1000}) {
      auto ids = random_ids(routes, experts, 3);
      for (std::size_t i = 0; i < ids.size(); i += 5)
        ids[i] = std::vector<std::int32_t>{-2, lowest_id, highest_id,
                                           static_cast<std::int32_t>(experts)}[i / 5 % 4];
      for (const auto level : cpu_levels()) {
        std::vector<std::int32_t> keys(ids.size(), -9);
        run_elements(level, routes, dispatch::route_key{experts}, all(std::as_const(ids)), all(keys));
        for (std::size_t i = 0; i < ids.size(); ++i)
          REQUIRE(keys[i] == (ids[i] >= 0 && ids[i] < experts ? ids[i] : experts));
      }
    }
}

TEST_CASE("the first id outside [-1, experts) is found, and nothing else") {
  constexpr index_t block = dispatch::offender_block;
  const index_t experts = 300;
  for (const auto level : cpu_levels())
    for (const index_t routes :
         {index_t{0}, index_t{1}, index_t{33}, block - 1, block, block + 1, 3 * block + 7}) {
      auto ids = random_ids(routes, experts, 1); // -1 and 299 among them
      CHECK(offender(ids, experts, level) == std::vector<std::int64_t>{0, 0});
      // Each new one lies before those that are there already.
      std::int32_t id = static_cast<std::int32_t>(experts);
      for (const index_t at : {routes - 1, 2 * block + 1, 2 * block, block - 1, index_t{32}, index_t{0}}) {
        if (at < 0 || at >= routes) continue;
        ids[static_cast<std::size_t>(at)] = id;
        CHECK(offender(ids, experts, level) == std::vector<std::int64_t>{at + 1, id});
        id = id == experts ? -2 : id == -2 ? lowest_id : id == lowest_id ? highest_id : 300;
      }
    }
}

TEST_CASE("D9: counts of groups whose offsets need 64 bits") {
  const index_t big = index_t{1} << 40;
  const std::vector<std::int64_t> offsets{0, 0, 5, big, big + 7, big + 7, big + 20};
  for (const auto level : cpu_levels()) {
    std::vector<std::int64_t> counts(5, -1);
    run_elements(level, 5, dispatch::counts_from_offsets{}, all(offsets), all(counts));
    CHECK(counts == std::vector<std::int64_t>{0, 5, big - 5, 7, 0});
  }
}

TEST_CASE("spread visits every number of a group once, remainder by remainder") {
  for (index_t n = 1; n <= 64; ++n)
    for (index_t stride = 1; stride <= 70; ++stride) {
      index_t j = 0;
      for (index_t first = 0; first < std::min(stride, n); ++first)
        for (index_t v = first; v < n; v += stride, ++j) {
          REQUIRE(dispatch::spread(j, n, stride) == v);
          REQUIRE(ordinal(v, n, stride) == j);
        }
      REQUIRE(j == n);
    }
}

TEST_CASE("D9: spread has an inverse where products of its numbers do not fit into 32 bits") {
  std::mt19937_64 engine(7);
  const auto below = [&](index_t n) {
    return static_cast<index_t>(engine() % static_cast<std::uint64_t>(n));
  };
  for (const index_t about : {index_t{1} << 20, index_t{912'000} * 7168, (index_t{1} << 40) + 3}) {
    for (int trial = 0; trial < 200; ++trial) {
      const index_t n = about - below(about / 2);
      const index_t stride = trial == 0   ? 1
                             : trial == 1 ? n
                             : trial == 2 ? n + 1
                                          : 1 + below(index_t{1} << (1 + trial % 40));
      for (index_t j : {index_t{0}, n - 1, n % stride * (n / stride + 1) % n, below(n), below(n)}) {
        const index_t v = dispatch::spread(j, n, stride);
        REQUIRE(v >= 0);
        REQUIRE(v < n);
        REQUIRE(ordinal(v, n, stride) == j);
      }
    }
  }
}

TEST_CASE("D10: rows of a slot get their routes, and routes their positions, round after round") {
  check_placement<32>(0, 3, 10, 1);
  check_placement<32>(1, 1, 10, 1);
  check_placement<32>(200, 6, 1000, 1);
  check_placement<32>(200, 6, 37, 3);
  check_placement<32>(700, 90, 200, 2); // several launches
  check_placement<1>(60, 4, 20, 1);
  check_placement<3>(300, 16, 64, 5);
  check_placement<3>(300, 16, 64, 1000); // a stride beyond the groups
}

TEST_CASE("D9: positions and groups far into a step") {
  // The last rows of a route index as large as 32 bits allow, without the index: the order is looked up at
  // the offsets that remain.
  const index_t last = (index_t{1} << 31) - 8;
  dispatch::place_routes<> place;
  place.base = last;
  place.blocks = {2, {{0, index_t{1} << 33, 0, 0}, {3, 5, 2, 4}}};
  place.stride = index_t{1} << 31;
  const std::vector<std::int32_t> order{7, 6, 5, 4, 3, 2, 1, 0};
  std::vector<std::int32_t> slot_route(3, -1), position(8, -1);
  // Rows 4 to 6 are in the second block: numbers 2, 3, 4 of its group.
  place.first_row = 4;
  run_elements(plateau::cpu_level::baseline, 3, place, all(order), all(slot_route), all(position));
  CHECK(slot_route == std::vector<std::int32_t>{2, 1, 0});
  CHECK(position == std::vector<std::int32_t>{static_cast<std::int32_t>(last + 6),
                                              static_cast<std::int32_t>(last + 5),
                                              static_cast<std::int32_t>(last + 4), -1, -1, -1, -1, -1});
}

TEST_CASE("D3: null pointers are legal where nothing is") {
  const plateau::view<const std::int32_t> none;
  run_elements(plateau::cpu_level::baseline, 0, dispatch::route_key{4}, none, plateau::view<std::int32_t>{});
  run_elements(plateau::cpu_level::baseline, 0, dispatch::place_routes<>{}, none,
               plateau::view<std::int32_t>{}, plateau::view<std::int32_t>{});
  std::vector<std::int64_t> answer(2, -7);
  run_rows(plateau::cpu_level::baseline, 0, dispatch::first_offender_blocks{4}, none,
           plateau::view<std::int64_t>{});
  run_rows(plateau::cpu_level::baseline, 1, dispatch::first_offender_of_all{},
           plateau::view<const std::int64_t>{}, none, all(answer));
  CHECK(answer == std::vector<std::int64_t>{0, 0});
}
