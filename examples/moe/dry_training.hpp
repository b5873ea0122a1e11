// SPDX-License-Identifier: Apache-2.0
//
// A dry run of the training program: the same trainer on a backend without data. It says what a step of this
// shape holds at its peak on every rank, byte for byte as a real run's meters do, and how long it takes on a
// machine that need not be here.
#pragma once

#include "dry_routing.hpp"
#include "dry_runs.hpp"
#include "peak_records.hpp"
#include "run_result.hpp"
#include "token_sampler.hpp"
#include "train_rank.hpp"
#include "trainer.hpp"
#include "training_job.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/run_dry.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

namespace detail {

// Tokens that nobody reads: enough for a sampler to be made.
inline corpus no_text(std::int64_t vocabulary, std::int64_t context) {
  corpus text;
  text.name = "none";
  text.vocabulary = vocabulary;
  text.tokens.assign(static_cast<std::size_t>(2 * (context + 1)), 0);
  return text;
}

// The peaks of the ranks that others stand for.
inline void copy_peaks(std::vector<rank_peaks>& by_rank, const std::vector<int>& stands_for) {
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const auto first = static_cast<std::size_t>(stands_for[r]);
    if (first == r) continue;
    by_rank[r] = by_rank[first];
    for (std::vector<peak_record>* list : {&by_rank[r].peaks, &by_rank[r].totals})
      for (peak_record& each : *list) each.rank = static_cast<int>(r);
  }
}

inline prediction prediction_of(const plateau::hardware& machine, const plateau::dry_ranks& ran,
                                const plateau::dry::timeline& times) {
  prediction p;
  p.machine = machine;
  p.trouble = times.trouble;
  p.findings = ran.findings();
  for (const auto& each : ran.recorders) {
    p.found += each->found();
    p.operations += each->operations();
  }
  for (const plateau::dry::rank_times& rank : times.ranks) {
    if (rank.marks.size() != 2) continue; // the marks that run_dry_training sets
    p.kinds.push_back({rank.rank, std::count(ran.stands_for.begin(), ran.stands_for.end(), rank.rank),
                       rank.marks[1].so_far - rank.marks[0].so_far});
    p.step_seconds = std::max(p.step_seconds, p.kinds.back().step.seconds);
  }
  return p;
}

} // namespace detail

// Runs construction, initial weights and one step. Ranks that the routing makes alike are run once. Throws
// collective_error with the first cause when a rank fails, as a limit on memory makes one.
template <class ScratchModel, class T> run_result run_dry_training(const training_job& job) {
  using backend_type = plateau::dry_run<ScratchModel>;
  const options& o = job.config;
  const model_config c = model_of(o, job.text->vocabulary);
  const rank_grid grid = grid_of(o);
  const training_settings settings = settings_of(o);
  const forced_routing forced(o.routing, o.experts, o.top_k, o.layers, o.ranks);
  const std::int64_t step = o.dry_step - 1;
  const dry_routing routing(forced, c, grid, settings, step, job.machine->ranks_per_node, o.flatten.dispatch);
  const corpus tokens = detail::no_text(job.text->vocabulary, o.context);
  const token_sampler sampler(tokens, o.context, o.seed);

  run_result result(o);
  result.text = summary_of(*job.text);
  std::vector<rank_peaks> by_rank(static_cast<std::size_t>(o.ranks));
  plateau::dry_options dry;
  dry.check_order = o.check_order.value_or(true);
  dry.scenario = [&](const plateau::dry_fetch& fetch) { return routing.answer(fetch); };

  const auto run_rank = [&](plateau::dry_communicator& world) {
    backend_type backend(world);
    if (o.memory_limit_bytes) backend.device().meter().limit(*o.memory_limit_bytes);
    expect_flattened<T>(backend, world, c, grid, settings, extras_of(job));
    set_phase(backend, "construction");
    trainer<backend_type, plateau::dry_communicator, T, chosen_peaks> train(backend, world, c, grid, settings,
                                                                            &forced);
    train.initialise(o.seed);
    if (!world.fold(routing.key(world.rank()))) return;
    backend.wait(backend.record(train.stream())); // what came before is not of the step
    backend.recorder().mark("step begins");
    train.run_step(sampler, step);
    plateau::close_step(backend, world, train.stream());
    backend.recorder().mark("step ends");
    rank_peaks& mine = by_rank[static_cast<std::size_t>(world.rank())];
    detail::add_peaks(backend, world.rank(), mine);
    detail::add_promises(train.promises(), mine);
    if (world.rank() == 0) result.dispatch = train.model().dispatched();
  };
  const plateau::dry_ranks ran =
      plateau::run_dry(grid.ranks, run_rank, dry, {.deadline = std::chrono::seconds{o.deadline_seconds}});
  if (ran.cause) ran.cause->raise();
  plateau::dry::timeline times =
      plateau::predict(ran, *job.machine, {o.perturb_seed, o.perturb, !o.trace.empty() || !o.svg.empty()});
  detail::copy_peaks(by_rank, ran.stands_for);
  for (const rank_peaks& each : by_rank) add_to_result(each, result);
  result.prediction = detail::prediction_of(*job.machine, ran, times);
  result.prediction->routing_note = forced.repeats_sentence();
  if (result.prediction->step_seconds > 0)
    result.tokens_per_second = static_cast<double>(o.batch * o.context) / result.prediction->step_seconds;
  if (!times.events.events.empty()) result.trace = std::move(times.events);
  return result;
}

// What rank `rank` of the job holds at most, on the backend that the dry run stands for.
template <class ScratchModel, class T> step_promise promise_of_job(const training_job& job, int rank) {
  const options& o = job.config;
  return step_promise_of<plateau::dry_run<ScratchModel>, plateau::dry_communicator, T, chosen_peaks>(
      model_of(o, job.text->vocabulary), grid_of(o), settings_of(o), rank, extras_of(job));
}

} // namespace moe
