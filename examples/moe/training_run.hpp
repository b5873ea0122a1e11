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
#include "state_file.hpp"
#include "token_sampler.hpp"
#include "trainer.hpp"

#include <plateau/run_ranks.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace moe {

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
  c.balance_weight = static_cast<float>(o.balance_weight);
  return c;
}

inline training_settings settings_of(const options& o) {
  training_settings s;
  s.adamw.clip = static_cast<float>(o.clip);
  s.context = o.context;
  s.batch = o.batch;
  s.accumulate = o.accumulate;
  s.steps = o.steps;
  s.warmup = o.warmup_steps();
  s.learning_rate = o.learning_rate;
  return s;
}

// Everything that decides how training goes on. The number of ranks does not; it only orders sums.
inline state_metadata metadata_of(const options& o, const corpus& text) {
  return {{"model", fmt::format("layers={} hidden={} heads={} kv_heads={} experts={} top_k={} "
                                "intermediate={} vocabulary={} tied={}",
                                o.layers, o.hidden, o.heads, o.kv_heads, o.experts, o.top_k, o.intermediate,
                                text.vocabulary, o.tied)},
          {"schedule",
           fmt::format("context={} batch={} accumulate={} steps={} lr={} warmup={} clip={} balance_weight={} "
                       "seed={} dtype={} routing={}",
                       o.context, o.batch, o.accumulate, o.steps, o.learning_rate, o.warmup_steps(), o.clip,
                       o.balance_weight, o.seed, name_of(o.dtype), o.routing.text)},
          {"corpus", fmt::format("{:016x}", text.digest)}};
}

// A run whose files have been read and checked.
struct training_job {
  options config;
  const corpus* text = nullptr;
  const safetensors_reader* initial = nullptr; // --weights or --resume
  std::int64_t first_step = 0;                 // steps that the resumed state has behind it
  std::ostream* out = &std::cout;
  int terminal_width = 0;
};

namespace detail {

inline peak_record record_of(int rank, const char* tag, const char* space, const plateau::peak& p) {
  peak_record r;
  r.rank = rank;
  r.tag = tag;
  r.space = space;
  r.bytes = p.bytes;
  for (std::size_t i = 0; i < plateau::tag_count; ++i)
    if (p.held[i] != 0) r.held_at_peak[plateau::name_of(plateau::all_tags[i])] = p.held[i];
  r.phase = p.phase;
  return r;
}

// The peaks of one rank, of each tag and of all together, in both spaces.
template <class Backend> void add_peaks(Backend& backend, int rank, run_result& result) {
  const auto add = [&](const plateau::meter& meter, const char* space) {
    for (const plateau::tag t : plateau::all_tags)
      if (meter.peak(t).bytes != 0)
        result.peaks.push_back(record_of(rank, plateau::name_of(t), space, meter.peak(t)));
    result.totals.push_back(record_of(rank, "total", space, meter.peak()));
  };
  add(backend.device().meter(), "device");
  add(backend.pinned().meter(), "host");
}

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
    if (const std::string active = active_experts_line(outcome.loads);
        number % active_every_ == 0 && active != active_)
      shown_.line(active_ = active);
    shown_.step({number, outcome.loss, tokens_per_step_ / seconds, outcome.gradient_norm});
  }

 private:
  progress shown_;
  expert_watch watch_;
  std::string active_;
  std::int64_t active_every_; // steps between looks at which experts are in use
  double tokens_per_step_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

} // namespace detail

// Trains, evaluates, saves. Throws collective_error with the first cause when a rank fails.
template <class Backend, class T> run_result run_training(const training_job& job) {
  const options& o = job.config;
  const model_config c = model_of(o, job.text->vocabulary);
  const rank_grid grid{static_cast<int>(o.ranks), static_cast<int>(o.expert_parallel)};
  const token_sampler sampler(*job.text, o.context, o.seed);
  std::optional<forced_routing> forced;
  if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k);

  run_result result;
  result.config = o;
  result.text = summary_of(*job.text);
  result.first_step = job.first_step;
  std::vector<run_result> by_rank(static_cast<std::size_t>(o.ranks));
  std::vector<std::string> owners;
  for (std::int64_t r = 0; r < o.ranks; ++r) owners.push_back("rank " + std::to_string(r));

  plateau::run_ranks(grid.ranks, [&](plateau::thread_communicator& world) {
    const int rank = world.rank();
    Backend backend(owners[static_cast<std::size_t>(rank)].c_str());
    if (o.memory_limit_bytes) backend.device().meter().limit(*o.memory_limit_bytes);
    backend.device().meter().phase("construction");
    using trainer_type = trainer<Backend, plateau::thread_communicator, T>;
    trainer_type train(backend, world, c, grid, settings_of(o), forced ? &*forced : nullptr);
    if (job.initial != nullptr)
      state_mover<trainer_type>(train).load(*job.initial, !o.resume.empty());
    else
      train.initialise(o.seed);

    std::optional<detail::narrator> narrator;
    if (rank == 0) narrator.emplace(job);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t step = job.first_step; step < o.last_step(); ++step) {
      const step_outcome outcome = train.run_step(sampler, step);
      world.close_step();
      if (!narrator) continue;
      result.losses.push_back(outcome.loss);
      narrator->step(step + 1, outcome);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    narrator.reset();
    const double held_out = train.held_out_loss(sampler);
    if (!o.save.empty()) {
      auto metadata = metadata_of(o, *job.text);
      metadata["step"] = std::to_string(std::max(job.first_step, o.last_step()));
      state_mover<trainer_type>(train).save(o.save, metadata);
    }
    world.close_step();
    detail::add_peaks(backend, rank, by_rank[static_cast<std::size_t>(rank)]);
    if (rank != 0) return;
    result.loss_heldout = held_out;
    const auto steps = static_cast<double>(result.losses.size());
    if (steps > 0) result.tokens_per_second = steps * static_cast<double>(o.batch * o.context) / seconds;
  });
  for (const run_result& each : by_rank) {
    result.peaks.insert(result.peaks.end(), each.peaks.begin(), each.peaks.end());
    result.totals.insert(result.totals.end(), each.totals.begin(), each.totals.end());
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
