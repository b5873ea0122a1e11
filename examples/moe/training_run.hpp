// SPDX-License-Identifier: Apache-2.0
//
// One run of the training program: options in, results out. The ranks are threads; rank 0 shows the progress.
// A template over the backend and the compute type, instantiated in one translation unit each, so that they
// compile side by side.
#pragma once

#include "expert_watch.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "run_result.hpp"
#include "scenario_file.hpp"
#include "state_check.hpp"
#include "state_file.hpp"
#include "token_sampler.hpp"
#include "trainer.hpp"

#include <plateau/close_step.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/trace/recorder.hpp>
#include <plateau/trace/traced_backend.hpp>
#include <plateau/trace/traced_communicator.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace moe {

static_assert(top_k_limit == max_top_k, "what is refused must be what the router cannot do");

inline model_config model_of(const options& o, std::int64_t vocabulary) {
  model_config c;
  c.layers = o.layers;
  c.hidden = o.hidden;
  c.heads = o.heads;
  c.kv_heads = o.kv_heads;
  c.experts = o.experts;
  c.top_k = o.top_k;
  c.intermediate = o.intermediate;
  c.vocabulary = vocabulary;
  c.tied = o.tied;
  c.norm_epsilon = static_cast<float>(o.norm_epsilon);
  c.rope_theta = o.rope_theta;
  c.balance_weight = static_cast<float>(o.balance_weight);
  c.attention = {o.attention_queries, o.attention_keys};
  return c;
}

inline training_settings settings_of(const options& o) {
  training_settings s;
  s.adamw.clip = static_cast<float>(o.clip);
  s.context = o.context;
  s.batch = o.batch;
  s.accumulate = o.accumulate;
  s.shares = o.routing.shares;
  s.steps = o.steps;
  s.warmup = o.warmup_steps();
  s.learning_rate = o.learning_rate;
  return s;
}

inline rank_grid grid_of(const options& o) {
  return {static_cast<int>(o.ranks), static_cast<int>(o.expert_ranks())};
}

// A run whose files have been read and checked.
struct training_job {
  options config;
  const corpus* text = nullptr;
  const safetensors_reader* initial = nullptr; // --weights or --resume
  std::int64_t first_step = 0;                 // steps that the resumed state has behind it
  std::optional<plateau::hardware> machine;    // of a dry run
  std::ostream* out = &std::cout;
  int terminal_width = 0;
};

// Names the part of the program that runs from here on, in the meters of both spaces.
template <class Backend> void set_phase(Backend& backend, const char* name) {
  backend.device().meter().phase(name);
  backend.pinned().meter().phase(name);
}

namespace detail {

inline peak_record record_of(int rank, const char* tag, const char* space, const plateau::peak& p) {
  peak_record r;
  r.rank = rank;
  r.tag = tag;
  r.space = space;
  r.bytes = p.bytes;
  for (std::size_t i = 0; i < plateau::tag_count; ++i)
    if (p.held[i] != 0) r.held_at_peak[plateau::name_of(plateau::all_tags[i])] = p.held[i];
  if (p.bytes == 0) r.held_at_peak[tag] = 0;
  r.phase = p.phase;
  return r;
}

// The four peaks that can be flattened are reported even where they never held a byte of device memory.
inline bool always_reported(const char* tag) {
  return std::any_of(flatten_rows.begin(), flatten_rows.end(),
                     [&](const auto& row) { return row.name == tag; });
}

// The peaks of one rank, of each tag and of all together, in both spaces.
template <class Backend> void add_peaks(Backend& backend, int rank, run_result& result) {
  const auto add = [&](const plateau::meter& meter, const char* space, bool with_empty) {
    for (const plateau::tag t : plateau::all_tags)
      if (meter.peak(t).bytes != 0 || (with_empty && always_reported(plateau::name_of(t))))
        result.peaks.push_back(record_of(rank, plateau::name_of(t), space, meter.peak(t)));
    result.totals.push_back(record_of(rank, "total", space, meter.peak()));
  };
  add(backend.device().meter(), "device", true);
  add(backend.pinned().meter(), "host", false);
}

// The highest point of device memory since add_peaks(), where it is higher than that.
template <class Backend> void add_evaluation_peak(Backend& backend, int rank, run_result& result) {
  const plateau::peak now = backend.device().meter().peak();
  for (const peak_record& total : result.totals)
    if (total.space == "device" && now.bytes > total.bytes)
      result.evaluation.push_back(record_of(rank, "total", "device", now));
}

inline void add_by_rank(const std::vector<run_result>& by_rank, run_result& result) {
  for (const run_result& each : by_rank) {
    result.peaks.insert(result.peaks.end(), each.peaks.begin(), each.peaks.end());
    result.totals.insert(result.totals.end(), each.totals.begin(), each.totals.end());
    result.evaluation.insert(result.evaluation.end(), each.evaluation.begin(), each.evaluation.end());
  }
}

// The rows of this rank's own tokens in a step. Thread-safe.
inline void add_routes(routing_recorder& to, std::int64_t step, int rank, const model_config& c,
                       const step_outcome& outcome) {
  for (index_t l = 0; l < c.layers; ++l)
    to.add(step, l, rank,
           std::span(outcome.own_routes)
               .subspan(static_cast<std::size_t>(l * c.experts), static_cast<std::size_t>(c.experts)));
}

// An update is left out when the norm of its gradients is not finite.
inline bool was_skipped(const step_outcome& outcome) { return !std::isfinite(outcome.gradient_norm); }

// What rank 0 tells the user after each step.
class narrator {
 public:
  narrator(const training_job& job)
      : shown_(*job.out, job.terminal_width, job.first_step, job.config.last_step()),
        active_every_(std::max<std::int64_t>(1, (job.config.last_step() - job.first_step) / 5)),
        tokens_per_step_(static_cast<double>(job.config.batch * job.config.context)) {}

  void step(std::int64_t number, const step_outcome& outcome) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    for (const std::string& alarm : watch_.alarms(outcome.loads)) shown_.line("alarm: " + alarm);
    // Once for each time that it begins: a run that has diverged skips every step from there on.
    const bool skipped = was_skipped(outcome);
    if (skipped && !skipping_)
      shown_.line(fmt::format("alarm: step {} skipped: gradient norm is not finite", number));
    skipping_ = skipped;
    if (const std::string active = active_experts_line(outcome.loads);
        number % active_every_ == 0 && active != active_)
      shown_.line(active_ = active);
    shown_.step({number, outcome.loss, tokens_per_step_ / seconds, outcome.gradient_norm});
  }

 private:
  progress shown_;
  expert_watch watch_;
  std::string active_;
  bool skipping_ = false;
  std::int64_t active_every_; // steps between looks at which experts are in use
  double tokens_per_step_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// What the ranks of a run have in common, and what they leave behind.
struct shared_run {
  const training_job& job;
  model_config model;
  rank_grid grid;
  const token_sampler& sampler;
  const forced_routing* forced;
  routing_recorder* routes; // nullptr: nobody wants them
  run_result& result;       // written by rank 0
  std::vector<run_result>& by_rank;
};

// One rank: trains, saves, evaluates. What was trained must not be lost when the evaluation fails.
template <class T, class Backend, class Communicator>
void train_rank(const shared_run& run, Backend& backend, Communicator& world) {
  const training_job& job = run.job;
  const options& o = job.config;
  const int rank = world.rank();
  if (o.memory_limit_bytes) backend.device().meter().limit(*o.memory_limit_bytes);
  const auto phase = [&](const char* name) { set_phase(backend, name); };
  phase("construction");
  using trainer_type = trainer<Backend, Communicator, T>;
  trainer_type train(backend, world, run.model, run.grid, settings_of(o), run.forced);
  std::optional<state_mover<trainer_type>> mover;
  if (const state_moves moves{job.initial != nullptr, !o.save.empty()}; moves.load || moves.save)
    mover.emplace(train, moves);
  if (job.initial != nullptr) {
    phase("loading");
    mover->load(*job.initial, !o.resume.empty());
  } else {
    train.initialise(o.seed);
  }

  std::optional<narrator> shown;
  if (rank == 0) shown.emplace(job);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = job.first_step; step < o.last_step(); ++step) {
    const step_outcome outcome = train.run_step(run.sampler, step);
    plateau::close_step(backend, world, train.stream());
    if (run.routes != nullptr) add_routes(*run.routes, step - job.first_step, rank, run.model, outcome);
    if (!shown) continue;
    run.result.losses.push_back(outcome.loss);
    if (was_skipped(outcome)) ++run.result.steps_skipped;
    shown->step(step + 1, outcome);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  shown.reset();
  if (!o.save.empty()) {
    phase("saving");
    auto metadata = metadata_of(o, *job.text);
    metadata["step"] = std::to_string(std::max(job.first_step, o.last_step()));
    mover->save(o.save, metadata);
    plateau::close_step(backend, world, train.stream());
  }
  run_result& mine = run.by_rank[static_cast<std::size_t>(rank)];
  add_peaks(backend, rank, mine); // of training, as a dry run predicts them
  phase("evaluation");
  const double held_out = train.held_out_loss(run.sampler);
  plateau::close_step(backend, world, train.stream());
  add_evaluation_peak(backend, rank, mine);
  if (rank != 0) return;
  run.result.loss_heldout = held_out;
  const auto steps = static_cast<double>(run.result.losses.size());
  if (steps > 0) run.result.tokens_per_second = steps * static_cast<double>(o.batch * o.context) / seconds;
}

} // namespace detail

// Throws collective_error with the first cause when a rank fails. Backends and communicators are
// those that can leave a trace, so that a run with one and a run without are compiled once.
template <class Backend, class T> run_result run_training(const training_job& job) {
  const options& o = job.config;
  const model_config c = model_of(o, job.text->vocabulary);
  const rank_grid grid = grid_of(o);
  const token_sampler sampler(*job.text, o.context, o.seed);
  std::optional<forced_routing> forced;
  if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k, o.layers, o.ranks);

  run_result result;
  result.config = o;
  result.text = summary_of(*job.text);
  result.first_step = job.first_step;
  std::vector<run_result> by_rank(static_cast<std::size_t>(o.ranks));
  std::vector<std::string> owners;
  for (std::int64_t r = 0; r < o.ranks; ++r) owners.push_back("rank " + std::to_string(r));
  const bool traced = !o.trace.empty() || !o.svg.empty();
  const auto origin = plateau::trace_recorder::clock::now();
  std::vector<std::unique_ptr<plateau::trace_recorder>> recorders;
  for (int r = 0; traced && r < grid.ranks; ++r)
    recorders.push_back(std::make_unique<plateau::trace_recorder>(r, origin));
  routing_recorder routes;
  const detail::shared_run run{job,
                               c,
                               grid,
                               sampler,
                               forced ? &*forced : nullptr,
                               o.record_routing.empty() ? nullptr : &routes,
                               result,
                               by_rank};

  const auto run_rank = [&](plateau::thread_communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    using traced_type = plateau::traced_backend<Backend>;
    traced_type backend(traced ? recorders[rank].get() : nullptr, owners[rank].c_str());
    plateau::traced_communicator<plateau::thread_communicator, traced_type> comm(world, backend);
    detail::train_rank<T>(run, backend, comm);
  };
  plateau::run_ranks(grid.ranks, run_rank, {.deadline = std::chrono::seconds{o.deadline_seconds}});
  detail::add_by_rank(by_rank, result);
  if (!o.record_routing.empty()) routes.write_csv(o.record_routing);
  if (traced) {
    std::vector<const plateau::trace_recorder*> all;
    for (const auto& each : recorders) all.push_back(each.get());
    result.trace = plateau::trace_recorder::merge("", all);
  }
  return result;
}

// The instantiations, one translation unit each.
run_result train_builtin_fp32(const training_job& job);
run_result train_builtin_bf16(const training_job& job);
#if defined(MOE_HAS_BLAS)
run_result train_blas_fp32(const training_job& job);
run_result train_blas_bf16(const training_job& job);
#endif

} // namespace moe
