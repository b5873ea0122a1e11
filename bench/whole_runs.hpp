// SPDX-License-Identifier: Apache-2.0
//
// Whole runs of the training program for a benchmark: the shape that they have in common, dry runs, real
// ones, and what these leave behind beside their results.
#pragma once

#include "measure.hpp"

#include "corpus.hpp"
#include "cuda_runs.hpp"
#include "dry_training.hpp"
#include "memory_limit.hpp"
#include "options.hpp"
#include "training_job.hpp"

#include <plateau/dry_run/presets.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace bench {

// Which peaks are flattened: none, with the layers computed again in backward, or all four.
enum class flattened : unsigned char { none, all };

inline constexpr double mebibyte = 1024 * 1024;

// Sixteen experts in each of eight layers, four ranks. Of what the shape leaves open (a tied projection,
// narrow experts) it takes what makes the baseline's logits and activations a third of its peak with one
// sequence a rank. Routes are balanced, which is the least that the baseline needs.
inline moe::options whole_shape(flattened how, std::int64_t context, std::int64_t batch) {
  moe::options o;
  o.layers = 8;
  o.experts = 16;
  o.intermediate = 64;
  o.vocabulary = 65536;
  o.tied = true;
  o.context = context;
  o.batch = batch;
  o.steps = 3;
  o.dtype = moe::compute_type::bf16;
  o.gemm = moe::has_blas ? moe::gemm_choice::blas : moe::gemm_choice::builtin;
  o.attention_queries = 128; // tiles that cost a sequence 2 MiB
  o.attention_keys = 256;
  o.deadline_seconds = 3600; // a step of the longest run takes minutes
  o.routing = moe::parse_routing("--routing", "balanced");
  const bool all = how == flattened::all;
  o.flatten = {all, all, all, all};
  return o;
}

inline moe::run_result predict(moe::options o, const plateau::hardware& machine = plateau::h200(),
                               bool check_order = false) {
  o.dry_run = true;
  o.check_order = check_order;
  moe::corpus text;
  text.vocabulary = *o.vocabulary;
  moe::training_job job;
  job.config = o;
  job.text = &text;
  job.machine = machine;
  if (o.backend == moe::backend_choice::cuda) return moe::dry_run_cuda_bf16(job);
#if defined(MOE_HAS_BLAS)
  if (o.gemm == moe::gemm_choice::blas) return moe::dry_run_blas_bf16(job);
#endif
  return moe::dry_run_builtin_bf16(job);
}

// What is promised of the rank that holds most.
inline std::uint64_t promised_bytes(const moe::options& o) {
  moe::corpus text;
  text.vocabulary = *o.vocabulary;
  moe::training_job job;
  job.config = o;
  job.text = &text;
  std::uint64_t most = 0;
  for (const int rank : {0, static_cast<int>(o.ranks) - 1})
    most = std::max<std::uint64_t>(most, moe::promise_of(job, rank).total.device_bytes);
  return most;
}

// As much of the licence texts as a run needs: what is held out is evaluated at its end, and that should not
// take longer than the training.
inline const moe::corpus& text_for(std::int64_t context) {
  static const moe::corpus whole = moe::default_corpus(65536);
  static moe::corpus some;
  some = whole;
  const auto enough = static_cast<std::size_t>(std::max<std::int64_t>(20'000, 6 * (context + 1)));
  if (some.tokens.size() > enough) some.tokens.resize(enough);
  return some;
}

// A real run, by ranks that are threads.
struct real_run {
  moe::run_result result;
  std::vector<std::vector<float>> first_losses; // by rank: of its tokens in the first step
  std::vector<double> wall, processor;          // seconds of each step, as rank 0 saw them

  std::uint64_t peak() const { return moe::highest_device_peak(result); }
};

// Throws what the run throws, collective_error where memory does not do.
inline real_run train(const moe::options& o) {
  real_run run;
  run.first_losses.resize(static_cast<std::size_t>(o.ranks));
  std::ostringstream silent;
  moe::training_job job;
  job.config = o;
  job.text = &text_for(o.context);
  job.out = &silent;
  double wall = 0, processor = 0;
  job.step_ended = [&](int rank, std::int64_t step, std::span<const float> losses) {
    if (step == 0) run.first_losses[static_cast<std::size_t>(rank)].assign(losses.begin(), losses.end());
    if (rank != 0) return;
    const double now = seconds_now(), used = processor_seconds_now();
    if (step > 0) { // the first one touches its memory for the first time
      run.wall.push_back(now - wall);
      run.processor.push_back(used - processor);
    }
    wall = now;
    processor = used;
  };
#if defined(MOE_HAS_BLAS)
  if (o.gemm == moe::gemm_choice::blas)
    run.result = *moe::train_blas_bf16(job);
  else
#endif
    run.result = *moe::train_builtin_bf16(job);
  return run;
}

} // namespace bench
