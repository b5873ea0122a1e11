// SPDX-License-Identifier: Apache-2.0
//
// Two trainings of one rank in lock step, one with nothing flattened and one flattened, on the same
// sequences: micro-batch by micro-batch first the one, then the other, and after each part of a step what
// they differ in. Each has a backend of its own, and so meters of its own: its peaks are those of a run by
// itself.
#pragma once

#include "parity.hpp"
#include "parity_probe.hpp"
#include "train_rank.hpp"
#include "unflattened_options.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace moe {

namespace detail {

// A communicator of its own over the ranks of `all`, and a backend.
template <class Backend> struct joined_backend {
  using plain_type = plateau::any_communicator<typename Backend::stream>;
  using backend_type = plateau::traced_backend<Backend>;
  using communicator_type = plateau::traced_communicator<plain_type, backend_type>;

  template <class... Arguments>
  explicit joined_backend(plain_type& all, const Arguments&... arguments)
      : plain(all.split(0, all.rank())), backend(nullptr, arguments...), world(plain, backend) {}

  plain_type plain;
  backend_type backend;
  communicator_type world;
};

// One of the two.
template <class T, class Backend> class parity_side {
  using clock = std::chrono::steady_clock;
  using joined = joined_backend<Backend>;

 public:
  using trainer_type =
      moe::trainer<typename joined::backend_type, typename joined::communicator_type, T, chosen_peaks>;

  template <class... Arguments>
  parity_side(const shared_run& run, const options& o, typename joined::plain_type& all,
              const Arguments&... arguments)
      : run_(&run), on_(all, arguments...) {
    result_.config = o;
    result_.text = summary_of(*run.job.text);
    result_.first_step = run.job.first_step;
    if (o.memory_limit_bytes) on_.backend.device().meter().limit(*o.memory_limit_bytes);
    set_phase(on_.backend, "construction");
    const model_config config = model_of(o, run.job.text->vocabulary);
    expect_flattened<T>(on_.backend, on_.world, config, run.grid, settings_of(o), extras_of(run.job));
    train_.emplace(on_.backend, on_.world, config, run.grid, settings_of(o),
                   run.forced ? &*run.forced : nullptr);
    if (run.job.initial == nullptr) {
      train_->initialise(o.seed);
      return;
    }
    set_phase(on_.backend, "loading");
    mover_.emplace(*train_, state_moves{true, false});
    mover_->load(*run.job.initial, !o.resume.empty());
  }

  trainer_type& train() { return *train_; }

  // Each waits for what it has enqueued: its time is its own.
  void begin_step() {
    timed([&] { so_far_ = train_->begin_step(); });
  }
  void run_micro_batch(std::int64_t step, index_t micro) {
    timed([&] { train_->run_micro_batch(run_->sampler, step, micro, so_far_); });
  }
  // What the update takes is then where it takes it from.
  void gather_gradients() {
    if (!result_.config.flatten.optimizer) return;
    timed([&] { train_->model().gradients().flat().finish(train_->stream()); });
  }
  step_outcome end_step(std::int64_t step) {
    step_outcome outcome;
    timed([&] {
      outcome = train_->end_step(step, so_far_);
      plateau::close_step(on_.backend, on_.world, train_->stream());
    });
    if (on_.world.rank() == 0) {
      result_.losses.push_back(outcome.loss);
      if (was_skipped(outcome)) ++result_.steps_skipped;
    }
    return outcome;
  }

  // Evaluates. Collective over `plain`; the result where rank 0 is.
  run_result finish(typename joined::plain_type& plain) {
    const options& o = result_.config;
    const int rank = plain.rank();
    rank_share share;
    add_peaks(on_.backend, rank, share.peaks);
    add_promises(train_->promises(), share.peaks);
    result_.dispatch = train_->model().dispatched();
    set_phase(on_.backend, "evaluation");
    result_.loss_heldout = train_->held_out_loss(run_->sampler);
    plateau::close_step(on_.backend, on_.world, train_->stream());
    add_evaluation_peak(on_.backend, rank, share.peaks);
    const double seconds = std::chrono::duration<double>(time_).count();
    const auto steps = static_cast<double>(result_.losses.size());
    if (steps > 0) result_.tokens_per_second = steps * static_cast<double>(o.batch * o.context) / seconds;
    const auto shares = gather_words(plain, share.words(), "results");
    if (rank == 0) add_to_result(shares, result_);
    return std::move(result_);
  }

 private:
  template <class F> void timed(F f) {
    const auto begin = clock::now();
    f();
    on_.backend.wait(on_.backend.record(train_->stream()));
    time_ += clock::now() - begin;
  }

  const shared_run* run_;
  joined on_;
  run_result result_;
  std::optional<trainer_type> train_;
  std::optional<state_mover<trainer_type>> mover_;
  typename trainer_type::step_so_far so_far_;
  clock::duration time_{};
};

} // namespace detail

// As train_rank, which it takes the place of where parity is asked for. The result is the flattened run's,
// with the other's beside it and the record of their differences.
template <class T, class Backend, class... BackendArguments>
std::optional<run_result> train_in_lock_step(const shared_run& run,
                                             plateau::any_communicator<typename Backend::stream>& plain,
                                             const BackendArguments&... arguments) {
  using side = detail::parity_side<T, Backend>;
  using probing = detail::joined_backend<Backend>;
  const options& o = run.job.config;
  side first(run, unflattened_of(o), plain, arguments...), second(run, o, plain, arguments...);
  probing own(plain, arguments...);
  parity_probe<typename probing::backend_type, typename probing::communicator_type,
               typename side::trainer_type>
      probe(own.backend, own.world, first.train(), second.train());
  parity_record record;
  record.tensors = probe.tensors();
  for (std::int64_t step = run.job.first_step; step < o.last_step(); ++step) {
    if (o.parity_from() == parity_start::same && step != run.job.first_step) probe.take_over();
    token_differences tokens;
    for (side* each : {&first, &second}) each->begin_step();
    for (index_t micro = 0; micro < o.accumulate; ++micro) {
      for (side* each : {&first, &second}) each->run_micro_batch(step, micro);
      probe.add_tokens(tokens);
    }
    for (side* each : {&first, &second}) each->gather_gradients();
    parity_step of_step;
    of_step.tokens = probe.of_all_ranks(tokens);
    of_step.gradients = probe.gradients();
    of_step.first_loss = first.end_step(step).loss;
    of_step.second_loss = second.end_step(step).loss;
    if (plain.rank() != 0) continue;
    record.steps.push_back(std::move(of_step));
    if (run.job.compared) run.job.compared(record, step + 1);
  }
  run_result before = first.finish(plain), after = second.finish(plain);
  if (plain.rank() != 0) return std::nullopt;
  after.unflattened = std::make_shared<const run_result>(std::move(before));
  after.parity = std::move(record);
  return after;
}

} // namespace moe
