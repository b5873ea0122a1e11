// SPDX-License-Identifier: Apache-2.0
//
// Planning where experts are computed: how long it takes, and how good the plans are beside the published
// algorithm and beside what no plan can beat, over random profiles of four kinds. `--profiles N` prints the
// table of N profiles as Markdown instead (the documentation's is of 20,000).
#include "../tests/support/placement_bound.hpp"
#include "table.hpp"

#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/testing/random_choice.hpp>

#include <array>
#include <cstring>
#include <vector>

namespace {

using plateau::index_t;
using plateau::placement_options;
using plateau::placement_plan;
using plateau::placement_policy;
using random_numbers = plateau::testing::random_numbers;

enum class kind { balanced, zipf, hot_set, hot_rank };
constexpr std::array<const char*, 4> kind_names{"balanced", "Zipf", "hot set", "hot rank"};

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

// Gives `rows` to the experts in proportion to `weights`; what rounding leaves goes one by one from the
// first.
void deal(index_t rows, const std::vector<index_t>& weights, std::vector<index_t>& out) {
  index_t sum = 0, dealt = 0;
  for (const index_t w : weights) sum += w;
  for (std::size_t e = 0; e < out.size(); ++e) {
    const index_t part = rows * weights[e] / sum;
    out[e] += part;
    dealt += part;
  }
  for (std::size_t e = 0; dealt < rows; e = (e + 1) % out.size())
    if (weights[e] > 0) {
      ++out[e];
      ++dealt;
    }
}

std::vector<index_t> profile(kind k, int ranks, index_t experts, index_t rows, random_numbers& random) {
  std::vector<index_t> weights(at(experts)), hot(at(experts), 0), out(at(experts), 0);
  for (index_t& w : weights) w = 900 + static_cast<index_t>(random.below(201));
  constexpr std::array<index_t, 4> percent{30, 50, 80, 95};
  index_t heat = percent[random.below(4)] * rows / 100;
  if (k == kind::balanced) heat = 0;
  if (k == kind::zipf) {
    for (std::size_t e = 0; e < weights.size(); ++e) weights[e] = 1'000'000 / static_cast<index_t>(e + 1);
    for (std::size_t e = weights.size(); e > 1; --e) std::swap(weights[e - 1], weights[random.below(e)]);
    heat = 0;
  }
  if (k == kind::hot_set) {
    constexpr std::array<index_t, 3> sizes{1, 4, 16};
    for (index_t h = sizes[random.below(3)]; h > 0; --h) hot[random.below(hot.size())] = 1;
  }
  if (k == kind::hot_rank) {
    const plateau::expert_homes homes{experts, ranks};
    const int rank = static_cast<int>(random.below(at(ranks)));
    for (index_t e = homes.first(rank); e < homes.first(rank + 1); ++e) hot[at(e)] = 1;
  }
  deal(rows - heat, weights, out);
  if (heat > 0) deal(heat, hot, out);
  return out;
}

struct shape {
  int ranks;
  index_t experts_per_rank;
};
constexpr std::array<shape, 8> shapes{{{4, 2}, {8, 1}, {8, 4}, {8, 16}, {16, 8}, {32, 4}, {32, 16}, {64, 4}}};
constexpr index_t weight_move_rows = 1024;

// Sums over profiles; loads as ratios to the mean.
struct quality {
  double load = 0, worst_load = 0, over_bound = 0, makespan = 0, worst_makespan = 0, over_cost_bound = 0;
  index_t transfers = 0, most_foreign = 0, duplicates = 0, profiles = 0;
};

// The plan for rows alone gives load and transfers; the one that knows what weights cost gives the makespan.
void judge(quality& q, const std::vector<index_t>& rows, int ranks, placement_options options) {
  const index_t experts = static_cast<index_t>(rows.size());
  const plateau::expert_homes homes{experts, ranks};
  index_t total = 0;
  for (const index_t n : rows) total += n;
  const double mean = static_cast<double>(total) / ranks;
  placement_plan plan(ranks, experts, options);
  plan.make(rows);
  std::vector<index_t> foreign(at(ranks), 0);
  for (const auto& piece : plan.moves()) ++foreign[at(piece.rank)];
  const double load = static_cast<double>(plan.largest_load()) / mean;
  const auto bound = [&](index_t cost) {
    return static_cast<double>(placement_bound::lowest_cost(homes, rows, {options.foreign_experts, 1, cost}));
  };
  q.load += load;
  q.worst_load = std::max(q.worst_load, load);
  q.over_bound += static_cast<double>(plan.largest_load()) / bound(0);
  q.transfers += static_cast<index_t>(plan.moves().size()) + plan.duplicates();
  q.duplicates += plan.duplicates();
  q.most_foreign = std::max(q.most_foreign, *std::max_element(foreign.begin(), foreign.end()));

  options.weight_move_rows = weight_move_rows;
  placement_plan costed(ranks, experts, options);
  costed.make(rows);
  std::vector<index_t> cost(costed.loads().begin(), costed.loads().end());
  for (const auto& piece : costed.moves()) cost[at(piece.rank)] += weight_move_rows;
  const double makespan = static_cast<double>(*std::max_element(cost.begin(), cost.end()));
  q.makespan += makespan / mean;
  q.worst_makespan = std::max(q.worst_makespan, makespan / mean);
  q.over_cost_bound += makespan / bound(weight_move_rows);
  ++q.profiles;
}

void print_profiles(int profiles) {
  struct planner {
    const char* name;
    placement_policy policy;
    index_t foreign;
  };
  constexpr std::array<planner, 6> planners{{{"native", placement_policy::native, 0},
                                             {"bounded, F = 1", placement_policy::bounded_least_loaded, 1},
                                             {"bounded, F = 2", placement_policy::bounded_least_loaded, 2},
                                             {"bounded, F = 4", placement_policy::bounded_least_loaded, 4},
                                             {"bounded, F = 8", placement_policy::bounded_least_loaded, 8},
                                             {"published", placement_policy::published_least_loaded, 512}}};
  std::array<std::array<quality, planners.size()>, 4> all{};
  random_numbers random(7);
  constexpr std::array<index_t, 4> means{4'096, 16'384, 65'536, 262'144};
  for (int i = 0; i < profiles; ++i) {
    const shape s = shapes[random.below(shapes.size())];
    const auto k = static_cast<std::size_t>(i) % 4;
    const std::vector<index_t> rows = profile(static_cast<kind>(k), s.ranks, s.ranks * s.experts_per_rank,
                                              means[random.below(means.size())] * s.ranks, random);
    for (std::size_t p = 0; p < planners.size(); ++p) {
      placement_options options;
      options.policy = planners[p].policy;
      options.foreign_experts = planners[p].foreign;
      judge(all[k][p], rows, s.ranks, options);
    }
  }
  fmt::print("| profiles | plan | load / mean | worst | load / bound | transfers | most foreign on a rank "
             "| makespan / mean | worst | makespan / bound |\n"
             "|---|---|---|---|---|---|---|---|---|---|\n");
  for (std::size_t k = 0; k < all.size(); ++k)
    for (std::size_t p = 0; p < planners.size(); ++p) {
      const quality& q = all[k][p];
      const double n = static_cast<double>(q.profiles);
      // The bound is of plans that keep F.
      const bool bounded = planners[p].policy == placement_policy::bounded_least_loaded;
      const auto to_bound = [&](double x) {
        return bounded ? fmt::format("{:.3f}", x / n) : std::string("-");
      };
      fmt::print("| {} | {} | {:.3f} | {:.3f} | {} | {:.1f} | {} | {:.3f} | {:.3f} | {} |\n", kind_names[k],
                 planners[p].name, q.load / n, q.worst_load, to_bound(q.over_bound),
                 static_cast<double>(q.transfers) / n, q.most_foreign, q.makespan / n, q.worst_makespan,
                 to_bound(q.over_cost_bound));
    }
  index_t duplicates = 0;
  for (const auto& of_kind : all) duplicates += of_kind.back().duplicates;
  fmt::print("\n{} profiles; published: {} weights sent twice to one rank\n", profiles, duplicates);
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--profiles") == 0) {
    print_profiles(std::atoi(argv[2]));
    return 0;
  }
  bench::table table(argv);
  constexpr int ranks = 64;
  constexpr index_t experts = 256;
  for (std::size_t k = 0; k < kind_names.size(); ++k)
    for (const index_t foreign : {2, 4}) {
      placement_options options;
      options.foreign_experts = foreign;
      options.weight_move_rows = weight_move_rows;
      placement_plan plan(ranks, experts, options);
      random_numbers random(11);
      std::vector<std::vector<index_t>> profiles;
      for (int i = 0; i < 64; ++i)
        profiles.push_back(profile(static_cast<kind>(k), ranks, experts, index_t{65'536} * ranks, random));
      std::size_t next = 0;
      const bench::series times = bench::alone(1000, [&] {
        plan.make(profiles[next]);
        next = (next + 1) % profiles.size();
      });
      table.row(fmt::format("placement, 64 ranks, 256 experts, {}, F = {}, ms", kind_names[k], foreign),
                times.in(1e-3), bench::goal::at_most(1));
    }
}
