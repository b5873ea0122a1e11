// SPDX-License-Identifier: Apache-2.0
//
// One training step, construction included, on ranks with and without data, and what both must agree on: of
// every tag and space of every rank the peak, what was held beside it and in which phase; products, launches,
// copies and exchanges. The grid of shapes, ranks and scenarios on which they are compared.
#pragma once

#include "dry_routing.hpp"
#include "step_promise_of.hpp"
#include "train_rank.hpp"
#include "trainer_on_ranks.hpp"

#include <plateau/close_step.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace test {

// A case whose routing is forced; it keeps what it refers to.
struct forced_case {
  training_case of;
  std::shared_ptr<const moe::forced_routing> routing;
  std::string scenario;
  std::optional<std::size_t> short_of_promise{}; // device bytes: a limit on each rank, below its promise
};

// What one rank has held, asked for and sent.
struct rank_account_of_step {
  struct space {
    std::vector<pl::peak> peaks; // by tag, and the total
    std::vector<std::uint64_t> allocations;
  };
  space device, pinned;
  pl::counters work, world;
  moe::step_promise promise; // what it was to hold at most
  std::size_t left = 0;      // bytes that were held when all was gone

  static space of(const pl::meter& m) {
    space s;
    for (const pl::tag t : pl::all_tags) {
      s.peaks.push_back(m.peak(t));
      s.allocations.push_back(m.allocations(t));
    }
    s.peaks.push_back(m.peak());
    return s;
  }
};
using step_accounts = std::vector<rank_account_of_step>; // by rank

inline void check_space(const rank_account_of_step::space& dry, const rank_account_of_step::space& real,
                        const char* name) {
  CAPTURE(name);
  REQUIRE(dry.peaks.size() == real.peaks.size());
  CHECK(dry.allocations == real.allocations);
  for (std::size_t t = 0; t < real.peaks.size(); ++t) {
    CAPTURE(t);
    CHECK(dry.peaks[t].bytes == real.peaks[t].bytes);
    CHECK((dry.peaks[t].held == real.peaks[t].held));
    CHECK(std::string(dry.peaks[t].phase) == real.peaks[t].phase);
  }
}
inline void check_counters(const pl::counters& dry, const pl::counters& real) {
  CHECK(dry.matrix_flops == real.matrix_flops);
  CHECK(dry.matrix_products == real.matrix_products);
  CHECK(dry.launches == real.launches);
  CHECK(dry.copied_bytes == real.copied_bytes);
  CHECK(dry.sent_bytes == real.sent_bytes);
  CHECK(dry.exchanges == real.exchanges);
  CHECK(dry.host_round_trips == real.host_round_trips);
  CHECK(dry.host_exchanges == real.host_exchanges);
}
inline void check_account(const rank_account_of_step& dry, const rank_account_of_step& real) {
  check_space(dry.device, real.device, "device");
  check_space(dry.pinned, real.pinned, "pinned");
  check_counters(dry.work, real.work);
  check_counters(dry.world, real.world);
  CHECK(dry.left == 0);
  CHECK(real.left == 0);
}

// Nothing holds more than its promise; to the byte, if `tight`. Of what is not bounded, no less than is known
// of it must be there then.
inline void check_promise(const rank_account_of_step& of, bool tight, bool tight_pinned) {
  const moe::step_promise& p = of.promise;
  const auto check = [](std::size_t held, std::size_t promised, bool bounded, bool to_the_byte) {
    if (bounded) CHECK(held <= promised);
    if (to_the_byte) CHECK(held >= promised);
  };
  for (const pl::tag t : pl::all_tags) {
    CAPTURE(static_cast<int>(t));
    const auto i = static_cast<std::size_t>(t);
    check(of.device.peaks[i].bytes, p[t].most.device_bytes, p[t].bounded, tight);
    check(of.pinned.peaks[i].bytes, p[t].most.pinned_bytes, true, tight_pinned);
  }
  check(of.device.peaks.back().bytes, p.total.device_bytes, p.bounded(), tight);
  check(of.pinned.peaks.back().bytes, p.total.pinned_bytes, true, tight_pinned);
  CHECK(p.least.device_bytes <= p.total.device_bytes);
  if (p.all_promised()) CHECK(p.least.device_bytes == p.total.device_bytes);
}

// One step. `key` makes of a communicator that can be folded one that is; ranks that others stand for leave
// no account.
template <class T, class Ranks, class Fold>
step_accounts one_step(const forced_case& c, const Ranks& on, Fold fold) {
  static const moe::corpus text = random_text(13, 4000, 1); // ids that every vocabulary has
  const training_case& t = c.of;
  const moe::token_sampler sampler(text, t.settings.context, 1);
  step_accounts out(static_cast<std::size_t>(t.grid.ranks));
  on.run(t.grid.ranks, [&](typename Ranks::communicator& world, typename Ranks::backend& backend) {
    rank_account_of_step& mine = out[static_cast<std::size_t>(world.rank())];
    mine.promise =
        moe::step_promise_of<typename Ranks::backend, typename Ranks::communicator, T, moe::chosen_peaks>(
            t.config, t.grid, t.settings, world.rank(), {t.forced != nullptr, {false, false}});
    if (c.short_of_promise)
      backend.device().meter().limit(mine.promise.total.device_bytes - *c.short_of_promise);
    {
      moe::set_phase(backend, "construction");
      trainer_of<T, typename Ranks::backend, typename Ranks::communicator, moe::chosen_peaks> train(
          backend, world, t.config, t.grid, t.settings, t.forced);
      train.initialise(t.seed);
      if (!fold(world)) return;
      train.run_step(sampler, 0);
      pl::close_step(backend, world, train.stream());
    }
    mine.device = rank_account_of_step::of(backend.device().meter());
    mine.pinned = rank_account_of_step::of(backend.pinned().meter());
    mine.work = backend.counters();
    mine.world = world.counters();
    mine.left = backend.device().meter().current() + backend.pinned().meter().current();
  });
  return out;
}
inline constexpr auto never_folded = [](auto&) { return true; };

// Nodes of three ranks, so that ranks that do the same have their peers near or far.
inline pl::hardware small_nodes() {
  pl::hardware h = pl::h200();
  h.ranks_per_node = 3;
  return h;
}

// The answers of the case's routing.
inline moe::dry_routing routing_of(const forced_case& c) {
  return {*c.routing,
          c.of.config,
          c.of.grid,
          c.of.settings,
          0,
          small_nodes().ranks_per_node,
          c.of.config.flatten.dispatch};
}
inline pl::dry_options answered_by(const moe::dry_routing& routing) {
  pl::dry_options options;
  options.scenario = [&routing](const pl::dry_fetch& fetch) { return routing.answer(fetch); };
  return options;
}

// The step without data, and what its recorders have.
template <class T, class ScratchModel = pl::host_backend>
step_accounts dry_step(const forced_case& c, pl::dry_ranks& ran, bool folded = false) {
  const moe::dry_routing routing = routing_of(c);
  return one_step<T>(
      c, support::without_data<ScratchModel>{answered_by(routing), &ran},
      [&](pl::dry_communicator& world) { return !folded || world.fold(routing.key(world.rank())); });
}

// With data, without, and without where ranks that are alike are folded.
template <class T, class Backend = pl::host_backend, class Communicator = pl::thread_communicator>
void check_case(const forced_case& c) {
  INFO("routing ", c.scenario, ", ranks ", c.of.grid.ranks, ", expert parallel ", c.of.grid.expert_parallel,
       ", a sequence ", c.of.settings.sequence_parallel, ", layers ", c.of.config.layers, ", accumulate ",
       c.of.settings.accumulate, ", batch ", c.of.settings.batch, ", context ", c.of.settings.context);
  const step_accounts real = one_step<T>(c, support::on_threads<Backend, Communicator>{}, never_folded);
  pl::dry_ranks ran, ran_folded;
  const step_accounts dry = dry_step<T, Backend>(c, ran), folded = dry_step<T, Backend>(c, ran_folded, true);
  REQUIRE_FALSE(ran.cause.has_value());
  REQUIRE_FALSE(ran_folded.cause.has_value());
  for (std::size_t rank = 0; rank < real.size(); ++rank) {
    CAPTURE(rank);
    check_account(dry[rank], real[rank]);
    check_account(folded[static_cast<std::size_t>(ran_folded.stands_for[rank])], real[rank]);
    check_promise(real[rank], false, false);
  }
  for (const std::string& each : ran.findings()) FAIL_CHECK(each);
  for (const std::string& each : ran_folded.findings()) FAIL_CHECK(each);

  const pl::dry::timeline times = pl::predict(ran, small_nodes()),
                          times_folded = pl::predict(ran_folded, small_nodes());
  CHECK(times.trouble == "");
  CHECK(times_folded.trouble == "");
  CHECK(times.seconds > 0);
  CHECK(times.seconds == times_folded.seconds);
  for (const pl::dry::rank_times& each : times_folded.ranks) {
    const pl::dry::rank_times& alone = times.ranks[static_cast<std::size_t>(each.rank)];
    CHECK(each.seconds == alone.seconds);
    CHECK(each.compute_busy == alone.compute_busy);
    CHECK(each.exposed_transfer == alone.exposed_transfer);
    CHECK(each.sent_bytes == alone.sent_bytes);
  }
}

inline const std::vector<std::string> all_scenarios{
    "balanced",        "zipf:1.2", "hot:0.5,3",     "hot:0.95,1",  "all-to-one",
    "rotating:0.75,1", "ragged",   "zipf:1+ragged", "zero-rank:0", "hot:0.9,2+zero-rank:1",
    "counts"};

// Rows of chance, of every rank as many as its tokens' routes.
inline moe::routing_scenario random_counts(const training_case& c, std::mt19937_64& engine) {
  auto table = std::make_shared<pl::counts_table>();
  table->steps = 1;
  table->layers = c.config.layers;
  table->ranks = c.grid.ranks;
  table->experts = c.config.experts;
  table->rows.resize(static_cast<std::size_t>(table->layers * table->ranks * table->experts));
  auto block = table->rows.begin();
  for (std::int64_t layer = 0; layer < table->layers; ++layer)
    for (int rank = 0; rank < c.grid.ranks; ++rank, block += table->experts) {
      const auto tokens = c.settings.own_tokens_before(c.settings.accumulate, rank, c.grid.ranks);
      for (std::int64_t i = 0; i < tokens * c.config.top_k; ++i) {
        const auto some = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(table->experts));
        // The first ones get more, the last one often none.
        ++*(block + static_cast<std::ptrdiff_t>(engine() % 2 == 0 ? some : some / 3));
      }
    }
  moe::routing_scenario out;
  out.routes = pl::routing::recorded_counts{table};
  out.text = "counts";
  return out;
}

// A shape of chance for these ranks, whose numbers divide as they must and are odd otherwise. Nothing where
// the scenario needs more ranks.
inline std::optional<forced_case> random_case(moe::rank_grid grid, const std::string& scenario,
                                              std::uint64_t seed) {
  const auto plus = scenario.find("zero-rank:");
  if (plus != std::string::npos && grid.ranks <= scenario.back() - '0' + 1) return {};
  std::mt19937_64 engine(seed);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
  };
  forced_case c;
  c.scenario = scenario;
  training_case& t = c.of;
  t.grid = grid;
  t.config.layers = between(0, 3);
  t.config.kv_heads = between(1, 2);
  t.config.heads = t.config.kv_heads * between(1, 3);
  t.config.hidden = t.config.heads * 2 * between(1, 3);
  t.config.experts = grid.expert_parallel * ((4 + grid.expert_parallel - 1) / grid.expert_parallel);
  t.config.top_k = between(1, 3);
  t.config.intermediate = between(3, 17);
  t.config.vocabulary = between(13, 47);
  t.config.tied = between(0, 1) == 1;
  t.config.balance_weight = 0.25F * static_cast<float>(between(0, 1));
  t.config.attention = between(0, 1) == 1 ? moe::attention_tile_size{} : moe::attention_tile_size{4, 8};
  t.settings.context = between(0, 9) == 0 ? between(60, 140) : between(1, 21);
  t.settings.accumulate = between(1, 3);
  t.settings.batch = std::max<std::int64_t>(t.settings.accumulate, between(1, 2 * grid.ranks + 1));
  t.settings.adamw.clip = static_cast<float>(between(0, 1));
  // Of those who dispatch by rounds: few rows a round, or more than there are.
  t.config.dispatch.send_cap_rows = between(1, 40);
  t.config.dispatch.receive_cap_rows = between(1, 40);
  t.config.dispatch.slots = static_cast<int>(between(1, 3));
  t.config.dispatch.placement = static_cast<moe::expert_placement>(between(0, 2));
  t.config.dispatch.foreign_experts = between(0, 3);
  // Of those whose loss has no logits: tiles and sub-blocks of a few rows, or larger than what there is.
  t.config.loss = {between(1, 40), between(1, 50), between(1, 40), static_cast<pl::rotation>(between(0, 2))};
  // Of those whose optimizer's state is in host memory: buckets of some parameters, or more than there are.
  t.config.optimizer = {static_cast<std::size_t>(between(2000, 200000)), static_cast<int>(between(1, 4)),
                        static_cast<pl::update_on>(between(0, 1)), between(0, 1) == 1};
  // Of those whose inputs of layers are parked: no host memory for them, for some, for all; each or few kept.
  const moe::index_t budgets[] = {0, 6000, pl::offload_shape::no_limit};
  t.config.checkpoint = {budgets[seed % 3], static_cast<moe::index_t>(1 + seed / 3 % 3)};
  // Sequences that some of the ranks share, where each can have two parts of them.
  const std::int64_t shared_by = between(1, grid.ranks),
                     zero_rank = plus == std::string::npos ? -1 : scenario.back() - '0';
  if (grid.ranks % shared_by == 0 && t.settings.context >= 2 * shared_by &&
      grid.ranks / shared_by > zero_rank + 1)
    t.settings.sequence_parallel = static_cast<int>(shared_by);
  t.config.sequence.hop_rows = between(1, 20);
  moe::routing_scenario routing;
  if (scenario == "counts") {
    if (t.config.layers == 0) t.config.layers = 1;
    routing = random_counts(t, engine);
  } else {
    routing = moe::parse_routing("--routing", scenario);
    t.settings.shares = routing.shares;
  }
  c.routing = std::make_shared<moe::forced_routing>(routing, t.config.experts, t.config.top_k,
                                                    t.config.layers, grid.ranks);
  t.forced = c.routing.get();
  return c;
}

// Every number of ranks and of expert groups, every scenario; each time another shape.
template <class T, class Backend = pl::host_backend, class Communicator = pl::thread_communicator>
void check_grid(int most_ranks, std::uint64_t seed, const moe::flatten_set& flatten = {}) {
  std::uint64_t cases = 0, shared = 0;
  std::size_t least = 0;
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (int expert_parallel = 1; expert_parallel <= ranks; ++expert_parallel) {
      if (ranks % expert_parallel != 0) continue;
      least += all_scenarios.size() - 2; // those that need more ranks
      for (const std::string& scenario : all_scenarios)
        if (auto c = random_case({ranks, expert_parallel}, scenario, seed * 1000 + cases)) {
          c->of.config.flatten = flatten;
          check_case<T, Backend, Communicator>(*c);
          ++cases;
          shared += c->of.settings.sequence_parallel > 1 ? 1 : 0;
        }
    }
  CHECK(cases >= least);
  CHECK(shared >= cases / 6);
}

// A case in which every part of a step has work to do on every rank, and no part's need is the smaller for
// it; with so many ranks to each sequence.
inline forced_case full_case(moe::rank_grid grid, int sequence_ranks) {
  forced_case c;
  c.scenario = "all-to-one";
  c.of = tiny_case(grid);
  c.of.config.experts = 4;
  c.of.config.vocabulary = 37;
  c.of.config.balance_weight = 0.1F;
  c.of.config.dispatch = {6, 5, 2, moe::expert_placement::least_loaded, 1};
  c.of.config.loss = {8, 16, 4, pl::rotation::activations};
  c.of.config.checkpoint = {2000, 1};
  c.of.config.optimizer = {5000, 2, pl::update_on::device, true};
  c.of.config.sequence.hop_rows = 4;
  c.of.settings.accumulate = 2;
  c.of.settings.batch = 4 * grid.ranks;
  c.of.settings.sequence_parallel = sequence_ranks;
  if (sequence_ranks > 1) c.of.settings.context = 6 * sequence_ranks;
  const auto routing = moe::parse_routing("--routing", c.scenario);
  c.routing = std::make_shared<moe::forced_routing>(routing, c.of.config.experts, c.of.config.top_k,
                                                    c.of.config.layers, grid.ranks);
  c.of.forced = c.routing.get();
  return c;
}

// The sixteen combinations of peaks hold to the byte what step_promise_of says before anything exists; under
// a limit of that, a step with all four goes, and not under one byte less. step(case) runs one.
template <class Step> void check_tight_promises(moe::rank_grid grid, Step step, int sequence_ranks = 1) {
  for (unsigned i = 0; i < 16; ++i) {
    forced_case c = full_case(grid, sequence_ranks);
    c.of.config.flatten = {(i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
    for (const auto where : {pl::update_on::device, pl::update_on::host}) {
      c.of.config.optimizer.where = where;
      c.short_of_promise.reset();
      CAPTURE(i);
      CAPTURE(grid.ranks);
      CAPTURE(sequence_ranks);
      CAPTURE(static_cast<int>(where));
      // An update on the host takes pinned memory list by list, and of it promises that of all.
      const bool pinned = where == pl::update_on::device;
      for (const rank_account_of_step& each : step(c)) check_promise(each, true, pinned);
      if (i != 15) continue;
      c.short_of_promise = 0;
      for (const rank_account_of_step& each : step(c)) check_promise(each, true, pinned);
      c.short_of_promise = 1;
      try {
        step(c);
        FAIL_CHECK("a byte less than the promise was enough");
      } catch (const pl::collective_error& e) {
        CAPTURE(e.cause);
        REQUIRE(e.budget().has_value());
        CHECK(e.budget()->limit < e.budget()->taken + e.budget()->asked);
      }
    }
  }
}

} // namespace test
