// SPDX-License-Identifier: Apache-2.0
//
// Whole runs of the training program in process, small and with odd sizes, and the states that they save.
// Whoever takes this links the program's runs (moe_runs) and compiles no model.
#pragma once

#include "dry_runs.hpp"
#include "reference/transformer.hpp"
#include "safetensors.hpp"
#include "scratch_folder.hpp"
#include "state_check.hpp"
#include "training_job.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace test {

// One of the sixteen combinations of peaks, by a number below 16: 0 is none of them.
inline constexpr int combinations = 16;
inline moe::flatten_set combination(int number) {
  moe::flatten_set out;
  for (std::size_t i = 0; i < moe::flatten_rows.size(); ++i)
    out.*moe::flatten_rows[i].member = (number >> i & 1) != 0;
  return out;
}
inline std::string name_of(const moe::flatten_set& flatten) {
  std::string out;
  for (const moe::flatten_row& row : moe::flatten_rows)
    if (flatten.*row.member) out += (out.empty() ? "" : ",") + std::string(row.name);
  return out.empty() ? "none" : out;
}

// Masters and moments of a saved state.
struct saved_state {
  reference::tensors masters, first, second;

  explicit saved_state(const std::string& path) {
    const moe::safetensors_reader file(path);
    reference::tensors* const to[] = {&masters, &first, &second};
    for (const moe::stored_tensor& each : file.tensors()) {
      std::size_t field = 0; // the first prefix is empty
      for (std::size_t i = 1; i < 3; ++i)
        if (each.name.starts_with(moe::state_prefixes[i])) field = i;
      reference::tensor out;
      std::size_t elements = 1;
      for (const auto extent : each.shape) {
        out.shape.push_back(static_cast<reference::index>(extent));
        elements *= static_cast<std::size_t>(extent);
      }
      std::vector<float> values(elements);
      file.read(each.name, each.shape, values);
      out.data.assign(values.begin(), values.end());
      (*to[field])[each.name.substr(std::string(moe::state_prefixes[field]).size())] = std::move(out);
    }
  }
};

// A run, and what each of its ranks had promised before.
struct promised_run : moe::run_result {
  std::vector<moe::step_promise> promises; // by rank
};

class whole_runs {
 public:
  explicit whole_runs(std::int64_t vocabulary = 31, std::size_t tokens = 500, std::uint64_t seed = 1) {
    std::mt19937_64 engine(seed);
    text_.name = "a text of chance";
    text_.vocabulary = vocabulary;
    for (std::size_t i = 0; i < tokens; ++i)
      text_.tokens.push_back(static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary)));
  }

  const moe::corpus& text() const { return text_; }
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string bytes_of(const std::string& name) const { return moe_test::read_file(file(name)); }

  // Two layers, three experts on each of four ranks; nothing divides anything. What is flattened has caps,
  // tiles and buckets that are filled several times.
  static moe::options small_run(const moe::flatten_set& flatten = {}) {
    moe::options o;
    o.ranks = 4;
    o.expert_parallel = 4;
    o.layers = 2;
    o.hidden = 12;
    o.heads = 6;
    o.kv_heads = 3;
    o.experts = 12;
    o.top_k = 2;
    o.intermediate = 7;
    o.context = 9;
    o.batch = 5;
    o.steps = 20;
    o.warmup = 3;
    o.learning_rate = 1e-2;
    o.flatten = flatten;
    o.dispatch_cap = {16, 12};
    o.foreign_experts = 1;
    o.vocabulary_tile = {9, 5};
    o.hop_rows = 9;
    o.bucket_bytes = 20000;
    o.slots = 2;
    return o;
  }

  // Steps to `last` of the schedule, from the seed or from the state in file `from`, which had `first` behind
  // it; saves in `to`, if that has a name.
  promised_run run(moe::options o, std::int64_t last, const std::string& to = {}, std::int64_t first = 0,
                   const std::string& from = {}) const {
    moe::training_job job;
    std::optional<moe::safetensors_reader> initial;
    o.stop_after = last;
    if (!to.empty()) o.save = file(to);
    if (!from.empty()) {
      o.resume = file(from);
      initial.emplace(o.resume);
      job.initial = &*initial;
    }
    std::ostringstream out;
    job.config = o;
    job.text = &text_;
    job.first_step = first;
    job.out = &out;
    const bool bf16 = o.dtype == moe::compute_type::bf16;
    promised_run run;
    for (int rank = 0; rank < o.ranks; ++rank)
      run.promises.push_back(bf16 ? moe::promise_builtin_bf16(job, rank)
                                  : moe::promise_builtin_fp32(job, rank));
    auto result = bf16 ? moe::train_builtin_bf16(job) : moe::train_builtin_fp32(job);
    REQUIRE(result.has_value());
    static_cast<moe::run_result&>(run) = std::move(*result);
    return run;
  }

 private:
  moe_test::scratch_folder folder_;
  moe::corpus text_;
};

} // namespace test
