// SPDX-License-Identifier: Apache-2.0
//
// A run whose files have been read and checked, and the functions that carry it out: one for each backend and
// compute type, each in a translation unit of its own, so that they compile side by side.
#pragma once

#include "corpus.hpp"
#include "model_config.hpp"
#include "options.hpp"
#include "run_result.hpp"
#include "safetensors.hpp"

#include <plateau/any_communicator.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/host/stream.hpp>

#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <ostream>
#include <span>

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
  c.norm_epsilon = static_cast<float>(o.norm_epsilon);
  c.rope_theta = o.rope_theta;
  c.balance_weight = static_cast<float>(o.balance_weight);
  c.attention = {o.attention_queries, o.attention_keys};
  c.sequence = o.sequence();
  c.flatten = o.flatten;
  c.dispatch = o.dispatch();
  c.loss = o.loss();
  c.optimizer = o.optimizer();
  c.checkpoint = o.checkpoint();
  return c;
}

inline rank_grid grid_of(const options& o) {
  return {static_cast<int>(o.ranks), static_cast<int>(o.expert_ranks())};
}

// Ranks that are processes: this process's end of what joins them.
using process_communicator = plateau::any_communicator<plateau::host::stream>;

struct training_job {
  options config;
  const corpus* text = nullptr;
  const safetensors_reader* initial = nullptr; // --weights or --resume
  std::int64_t first_step = 0;                 // steps that the resumed state has behind it
  std::optional<plateau::hardware> machine;    // of a dry run
  std::ostream* out = &std::cout;
  int terminal_width = 0;
  process_communicator* processes = nullptr; // this process is one rank of them; null: it has all the ranks

  // With --parity: called behind each step (from 1), which is the record's last, on rank 0's thread. Empty:
  // nobody listens.
  std::function<void(const parity_record& so_far, std::int64_t step)> compared;
  // For a program that measures runs: called behind each step (from 0) by every rank of this process, on the
  // rank's thread, with the losses of its own tokens of the step's last micro-batch. Empty: nobody looks.
  std::function<void(int rank, std::int64_t step, std::span<const float> token_losses)> step_ended;
};

// Each throws collective_error with the first cause when a rank fails. Nothing comes back to a process that
// has not rank 0.
std::optional<run_result> train_builtin_fp32(const training_job& job);
std::optional<run_result> train_builtin_bf16(const training_job& job);
#if defined(MOE_HAS_BLAS)
std::optional<run_result> train_blas_fp32(const training_job& job);
std::optional<run_result> train_blas_bf16(const training_job& job);
#endif

} // namespace moe
