// SPDX-License-Identifier: Apache-2.0
//
// The run of one rank, whoever started it and whatever joins it to the others: trains, saves, evaluates, and
// gives rank 0 what the result needs.
#pragma once

#include "chosen_peaks.hpp"
#include "gather.hpp"
#include "narrator.hpp"
#include "peak_records.hpp"
#include "rank_share.hpp"
#include "state_file.hpp"
#include "step_promise_of.hpp"
#include "token_sampler.hpp"
#include "trace_origin.hpp"
#include "trainer.hpp"
#include "training_job.hpp"

#include <plateau/any_communicator.hpp>
#include <plateau/close_step.hpp>
#include <plateau/trace/recorder.hpp>
#include <plateau/trace/traced_backend.hpp>
#include <plateau/trace/traced_communicator.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moe {

static_assert(top_k_limit == max_top_k, "what is refused must be what the router cannot do");

inline training_settings settings_of(const options& o) {
  training_settings s;
  s.adamw.clip = static_cast<float>(o.clip);
  s.context = o.context;
  s.batch = o.batch;
  s.accumulate = o.accumulate;
  s.shares = o.routing.shares;
  s.sequence_parallel = static_cast<int>(o.sequence_parallel);
  s.steps = o.steps;
  s.warmup = o.warmup_steps();
  s.learning_rate = o.learning_rate;
  return s;
}

inline step_extras extras_of(const training_job& job) {
  return {job.config.routing.forced(), {job.initial != nullptr, !job.config.save.empty()}};
}

// The meters of a rank are told what each tag would hold with every peak flattened.
template <class T, class Backend, class Communicator>
void expect_flattened(Backend& backend, const Communicator& world, const model_config& c, const rank_grid& g,
                      const training_settings& s, const step_extras& with) {
  expect(backend, flattened_promise_of<Backend, Communicator, T, chosen_peaks>(c, g, s, world.rank(), with));
}

// What the ranks of one process read in common.
struct shared_run {
  const training_job& job;
  model_config model;
  rank_grid grid;
  token_sampler sampler;
  std::optional<forced_routing> forced;

  explicit shared_run(const training_job& j)
      : job(j), model(model_of(j.config, j.text->vocabulary)), grid(grid_of(j.config)),
        sampler(*j.text, j.config.context, j.config.seed) {
    const options& o = j.config;
    if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k, o.layers, o.ranks);
  }
};

namespace detail {

// The rows of this rank's own tokens in a step.
inline void add_routes(routing_recorder& to, std::int64_t step, int rank, const model_config& c,
                       const step_outcome& outcome) {
  for (index_t l = 0; l < c.layers; ++l)
    to.add(step, l, rank,
           std::span(outcome.own_routes)
               .subspan(static_cast<std::size_t>(l * c.experts), static_cast<std::size_t>(c.experts)));
}

// Brings the losses of a rank's tokens to whoever asked for them.
template <class Backend> class token_loss_reader {
 public:
  token_loss_reader(Backend& backend, index_t tokens)
      : backend_(&backend), pinned_(backend.pinned(), tokens, plateau::tag::other),
        values_(static_cast<std::size_t>(tokens)) {}

  std::span<const float> read(typename Backend::stream& s, plateau::view<float> losses) {
    const auto part = pinned_.all().sub(0, losses.n);
    const auto to = std::span(values_).first(static_cast<std::size_t>(losses.n));
    backend_->copy(s, plateau::in(plateau::view<const float>(losses)), plateau::out(part));
    backend_->fetch(backend_->record(s), plateau::in(part), to, "losses of tokens", 0.0F);
    return to;
  }

 private:
  Backend* backend_;
  plateau::pinned_buffer<float, Backend> pinned_;
  std::vector<float> values_;
};

// What was trained is saved before the evaluation, and must not be lost when that fails. Fills in `result` on
// rank 0 only.
template <class T, class Backend, class Communicator>
void train_and_evaluate(const shared_run& run, Backend& backend, Communicator& world, rank_share& share,
                        run_result& result) {
  const training_job& job = run.job;
  const options& o = job.config;
  const int rank = world.rank();
  if (o.memory_limit_bytes) backend.device().meter().limit(*o.memory_limit_bytes);
  const auto phase = [&](const char* name) { set_phase(backend, name); };
  expect_flattened<T>(backend, world, run.model, run.grid, settings_of(o), extras_of(job));
  phase("construction");
  using trainer_type = trainer<Backend, Communicator, T, chosen_peaks>;
  trainer_type train(backend, world, run.model, run.grid, settings_of(o),
                     run.forced ? &*run.forced : nullptr);
  std::optional<state_mover<trainer_type>> mover;
  if (const state_moves moves{job.initial != nullptr, !o.save.empty()}; moves.load || moves.save)
    mover.emplace(train, moves);
  if (job.initial != nullptr) {
    phase("loading");
    mover->load(*job.initial, !o.resume.empty());
  } else {
    train.initialise(o.seed);
  }

  std::optional<token_loss_reader<Backend>> token_losses;
  if (job.step_ended) token_losses.emplace(backend, settings_of(o).limits(run.grid.ranks).tokens());
  std::optional<narrator> shown;
  if (rank == 0) shown.emplace(job);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = job.first_step; step < o.last_step(); ++step) {
    const step_outcome outcome = train.run_step(run.sampler, step);
    plateau::close_step(backend, world, train.stream());
    if (token_losses)
      job.step_ended(rank, step, token_losses->read(train.stream(), train.model().token_losses()));
    if (!o.record_routing.empty()) add_routes(share.routes, step - job.first_step, rank, run.model, outcome);
    if (!shown) continue;
    result.losses.push_back(outcome.loss);
    if (was_skipped(outcome)) ++result.steps_skipped;
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
  add_peaks(backend, rank, share.peaks); // of training, as a dry run predicts them
  add_promises(train.promises(), share.peaks);
  result.dispatch = train.model().dispatched();
  phase("evaluation");
  const double held_out = train.held_out_loss(run.sampler);
  plateau::close_step(backend, world, train.stream());
  add_evaluation_peak(backend, rank, share.peaks);
  if (rank != 0) return;
  result.loss_heldout = held_out;
  const auto steps = static_cast<double>(result.losses.size());
  if (steps > 0) result.tokens_per_second = steps * static_cast<double>(o.batch * o.context) / seconds;
}

} // namespace detail

// Collective over `plain`, whose size is the run's number of ranks. The result on rank 0, nothing elsewhere.
// The Backend is made from the arguments. It and what joins its streams are wrapped, so that runs with a
// trace and without, on whatever communicator, are compiled once for each Backend and T.
template <class T, class Backend, class... BackendArguments>
std::optional<run_result> train_rank(const shared_run& run,
                                     plateau::any_communicator<typename Backend::stream>& plain,
                                     const BackendArguments&... arguments) {
  using backend_type = plateau::traced_backend<Backend>;
  using communicator_type =
      plateau::traced_communicator<plateau::any_communicator<typename Backend::stream>, backend_type>;
  const options& o = run.job.config;
  run_result result(o);
  result.text = summary_of(*run.job.text);
  result.first_step = run.job.first_step;
  rank_share share;
  std::optional<plateau::trace_recorder> recorder;
  if (!o.trace.empty() || !o.svg.empty()) recorder.emplace(plain.rank(), common_origin(plain));
  {
    backend_type backend(recorder ? &*recorder : nullptr, arguments...);
    communicator_type world(plain, backend);
    detail::train_and_evaluate<T>(run, backend, world, share, result);
  }
  if (recorder) share.trace = plateau::trace_recorder::merge("", {&*recorder});
  const auto shares = gather_words(plain, share.words(), "results");
  if (plain.rank() != 0) return std::nullopt;
  add_to_result(shares, result);
  return result;
}

} // namespace moe
