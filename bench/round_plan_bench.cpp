// SPDX-License-Identifier: Apache-2.0
//
// What the plan of a dispatch costs, and what its rounds are like: 64 ranks with 65,536 routes each, caps of
// a tenth of that. Every rank computes every round of the plan, so a round has to cost microseconds. What the
// policies are for stands below: how many rows a destination gets for a segment in a round, which is the
// height of a GEMM, and how even the rounds are.
#include "table.hpp"

#include <plateau/all_to_all/round_plan.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

using plateau::index_t;
using plateau::round_block;
using plateau::round_plan;
using plateau::round_policy;

constexpr int ranks = 64;
constexpr index_t routes = 65'536, cap = routes / 10 + 1; // of a rank
constexpr int hot = 3;
constexpr std::array<std::pair<round_policy, const char*>, 3> policies{
    {{round_policy::expert_first, "expert-first"},
     {round_policy::diagonal, "diagonal"},
     {round_policy::smooth, "smooth"}}};

double fraction(std::uint64_t n) { // of 1, scattered
  n = (n + 1) * 0x9e3779b97f4a7c15u;
  n = (n ^ n >> 32) * 0xd6e8feb86659fd93u;
  return static_cast<double>((n ^ n >> 32) >> 11) * 0x1p-53;
}

// How much a source wants of a segment; `home` is the segment's rank.
struct pattern {
  const char* name;
  double (*weight)(int source, int home, int segment, int segments);
};
constexpr pattern patterns[] = {
    {"balanced", [](int, int, int, int) { return 1.0; }},
    {"Zipf",
     [](int source, int, int segment, int segments) {
       return (0.8 + 0.4 * fraction(static_cast<std::uint64_t>(source * segments + segment))) /
              (1 + segment * 37 % segments);
     }},
    {"95% to one rank",
     [](int, int home, int, int segments) {
       const double of_a_rank = segments / double{ranks};
       return home == hot ? 0.95 / of_a_rank : 0.05 / (segments - of_a_rank);
     }},
    {"all to one rank", [](int, int home, int, int) { return home == hot ? 1.0 : 0; }},
    {"from one rank", [](int source, int, int, int) { return source == hot ? 1.0 : 0; }},
    {"sparse",
     [](int source, int, int segment, int segments) {
       const double x = fraction(static_cast<std::uint64_t>(source * segments + segment));
       return x < 0.05 ? x : 0;
     }},
    {"three diagonals",
     [](int source, int home, int, int) {
       const int apart = (home - source + ranks) % ranks;
       return apart < 3 ? 1.0 + apart : 0;
     }},
    {"cross", [](int source, int home, int, int) { return home == hot || source == 9 ? 1.0 : 0; }},
    // A hundred permutations: all caps are used up in every round, and little but repairs decides.
    {"permutations",
     [](int source, int home, int segment, int segments) {
       double sum = 0;
       for (std::uint64_t k = 0; k < 100; ++k) {
         const auto odd = static_cast<int>(fraction(3 * k) * ranks) | 1;
         const auto shift = static_cast<int>(fraction(3 * k + 1) * ranks);
         if ((odd * source + shift) % ranks == home)
           sum += fraction(3 * k + 2) * (1 + segment % (segments / ranks));
       }
       return sum;
     }},
    {"triangular", [](int source, int home, int, int) { return home <= source ? 1.0 : 0; }},
};

struct counts {
  std::vector<int> rank_of_segment;
  std::vector<index_t> rows; // (segments x ranks)
  index_t all = 0;

  counts(const pattern& of, int segments_of_a_rank) {
    const int segments = ranks * segments_of_a_rank;
    for (int g = 0; g < segments; ++g) rank_of_segment.push_back(g / segments_of_a_rank);
    rows.resize(static_cast<std::size_t>(segments * ranks));
    for (int source = 0; source < ranks; ++source) {
      const auto weight = [&](int g) { return of.weight(source, g / segments_of_a_rank, g, segments); };
      double sum = 0;
      for (int g = 0; g < segments; ++g) sum += weight(g);
      for (int g = 0; g < segments && sum > 0; ++g)
        rows[static_cast<std::size_t>(g * ranks + source)] =
            static_cast<index_t>(static_cast<double>(routes) * weight(g) / sum);
    }
    for (const index_t n : rows) all += n;
  }
  index_t segments() const { return static_cast<index_t>(rank_of_segment.size()); }
};

struct planner {
  const counts& of;
  round_policy policy;
  index_t send_cap = cap;
  round_plan plan{ranks, of.segments()};

  void begin() {
    const std::vector<index_t> send(ranks, send_cap), receive(ranks, cap);
    plan.begin(of.rank_of_segment, of.rows, send, receive, policy);
  }
};

bench::spread figure(double x) { return {x, x, x, x, 0}; }

// The first round with all that precedes it, and the others, each.
void times(bench::table& table, const std::string& what, planner&& p, double first_goal, double round_goal) {
  bench::series first, rest;
  for (int repeat = 0; repeat < 31; ++repeat) {
    first.time([&] {
      p.begin();
      p.plan.next();
    });
    rest.time([&] {
      while (p.plan.next()) {
      }
    });
  }
  const auto goal = [](double limit) { return limit > 0 ? bench::goal::at_most(limit) : bench::goal{}; };
  table.row(what + ": first round, us", first.in(1e-6), goal(first_goal));
  if (const auto rounds = static_cast<double>(p.plan.rounds() - 1); rounds > 0)
    table.row(what + ": the others, us each", rest.in(1e-6 * rounds), goal(round_goal));
}
// The longest round of each plan, the first with all that precedes it among them.
void longest(bench::table& table, const std::string& what, planner&& p, double goal) {
  bench::series worst;
  for (int repeat = 0; repeat < 31; ++repeat) {
    bench::series rounds;
    rounds.time([&] {
      p.begin();
      p.plan.next();
    });
    for (bool more = true; more;) rounds.time([&] { more = p.plan.next(); });
    worst.wall.push_back(*std::max_element(rounds.wall.begin(), rounds.wall.end()));
    worst.processor.push_back(*std::max_element(rounds.processor.begin(), rounds.processor.end()));
  }
  table.row(what + ": longest round, us", worst.in(1e-6), bench::goal::at_most(goal));
}

// How large the groups of a round are, in rows and beside the fewest groups that there can be: a segment
// needs as many as caps fit into its rows. How much more the fullest round moves than all do on average.
void shape(bench::table& table, const std::string& what, planner&& p) {
  p.begin();
  double groups = 0, fewest = 0;
  index_t fullest = 0;
  while (p.plan.next()) {
    index_t before = -1, rows = 0;
    for (const round_block& b : p.plan.blocks()) {
      groups += b.segment != before;
      before = b.segment;
      rows += b.rows;
    }
    fullest = std::max(fullest, rows);
  }
  for (std::size_t g = 0; g < p.of.rank_of_segment.size(); ++g) {
    const auto first = p.of.rows.begin() + static_cast<std::ptrdiff_t>(g * ranks);
    fewest += static_cast<double>((std::accumulate(first, first + ranks, index_t{0}) + cap - 1) / cap);
  }
  const auto all = static_cast<double>(p.of.all);
  table.row(what + ": rows a group", figure(all / groups));
  table.row(what + ": groups, of the fewest", figure(groups / fewest));
  table.row(what + ": fullest, of the mean",
            figure(static_cast<double>(fullest) * static_cast<double>(p.plan.rounds()) / all));
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  for (const pattern& of : patterns) {
    const std::string name = of.name;
    const counts one(of, 1), five(of, 5); // 64 experts; 256 and a foreign segment on each rank
    times(table, name + ", 64 segments, diagonal", {one, round_policy::diagonal}, 200, 20);
    longest(table, name + ", 320 segments, expert-first", {five, round_policy::expert_first}, 500);
    times(table, name + ", 320 segments, smooth", {five, round_policy::smooth}, 0, 0);
  }
  for (const pattern& of : patterns) {
    const counts five(of, 5);
    for (const auto& [policy, policy_name] : policies)
      shape(table, std::string(of.name) + ", " + policy_name, {five, policy});
    shape(table, std::string(of.name) + ", expert-first, 2 x send",
          {five, round_policy::expert_first, 2 * cap});
  }
}
