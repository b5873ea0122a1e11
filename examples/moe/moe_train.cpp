// SPDX-License-Identifier: Apache-2.0
//
// moe_train: trains a small mixture-of-experts transformer on any text, on CPU threads or on GPUs, with ranks
// that are threads or processes, and shows where its memory peaks lie.
#include "comparison.hpp"
#include "cuda_runs.hpp"
#include "dry_report.hpp"
#include "dry_runs.hpp"
#include "growth.hpp"
#include "growth_report.hpp"
#include "hardware_file.hpp"
#include "memory_limit.hpp"
#include "mpi_place.hpp"
#include "mpi_start.hpp"
#include "must_agree.hpp"
#include "parity_report.hpp"
#include "process_team.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "result_json.hpp"
#include "state_check.hpp"
#include "token_sampler.hpp"
#include "trace_files.hpp"
#include "training_job.hpp"
#include "unflattened_options.hpp"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if defined(MOE_HAS_BLAS)
#include <cblas.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

// The unflattened peaks allocate and free large blocks in every step. Keeping them saves the page faults of
// first touch. But the largest go back to the system: freed on the heap, an aligned block fits no block of
// its own size again when anything was put beside it, and the heap would grow by one in every step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20); // as large as it may be
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_ARENA_MAX, 1);
#endif
}

std::optional<moe::run_result> train(const moe::training_job& job) {
  const bool bf16 = job.config.dtype == moe::compute_type::bf16;
#if defined(MOE_HAS_CUDA)
  if (job.config.backend == moe::backend_choice::cuda)
    return bf16 ? moe::train_cuda_bf16(job) : moe::train_cuda_fp32(job);
#endif
#if defined(MOE_HAS_BLAS)
  if (job.config.gemm == moe::gemm_choice::blas) {
    openblas_set_num_threads(1); // each rank has its own thread already
    return bf16 ? moe::train_blas_bf16(job) : moe::train_blas_fp32(job);
  }
#endif
  return bf16 ? moe::train_builtin_bf16(job) : moe::train_builtin_fp32(job);
}

moe::run_result predict(const moe::training_job& job) {
  const bool bf16 = job.config.dtype == moe::compute_type::bf16;
  if (job.config.backend == moe::backend_choice::cuda)
    return bf16 ? moe::dry_run_cuda_bf16(job) : moe::dry_run_cuda_fp32(job);
#if defined(MOE_HAS_BLAS)
  if (job.config.gemm == moe::gemm_choice::blas)
    return bf16 ? moe::dry_run_blas_bf16(job) : moe::dry_run_blas_fp32(job);
#endif
  return bf16 ? moe::dry_run_builtin_bf16(job) : moe::dry_run_builtin_fp32(job);
}

// What was promised of all tags together, where every byte is.
void add_promised_totals(const moe::training_job& job, moe::run_result& result) {
  for (moe::peak_record& total : result.totals)
    if (const moe::step_promise p = moe::promise_of(job, total.rank); p.all_promised())
      total.promised = total.space == "device" ? p.total.device_bytes : p.total.pinned_bytes;
}

// What was asked for beside the text for people.
void write_files(const moe::options& o, moe::run_result& result) {
  if (result.trace) result.trace->title = moe::trace_title(result);
  if (!o.json.empty()) moe::write_json(o.json, result);
  if (!o.trace.empty()) moe::write_trace(o.trace, result);
  if (!o.svg.empty()) moe::write_svg(o.svg, result);
  if (!o.record_routing.empty()) moe::write_result_file(o.record_routing, result.routing);
}

// A dry run reads no text, but for its vocabulary where that is not given.
int run_dry(const moe::options& o, std::ostream& out) {
  moe::corpus text;
  if (!o.data.empty())
    text = moe::load_corpus(o.data, o.vocabulary);
  else
    text.vocabulary = o.vocabulary.value_or(moe::byte_pair_vocabulary);
  moe::training_job job;
  job.config = o;
  job.text = &text;
  moe::check(moe::model_of(o, text.vocabulary), moe::grid_of(o));
  job.machine = moe::machine_of("--hardware", o.hardware_name(), o.ranks);
  moe::check_memory_limit(job);
  std::shared_ptr<const moe::run_result> before;
  if (o.compare) {
    moe::training_job unflattened = job;
    unflattened.config = moe::unflattened_of(o);
    out << moe::first_run_line;
    before = std::make_shared<const moe::run_result>(predict(unflattened));
    out << moe::prediction_text(*before) << '\n' << moe::second_run_line(o);
  }
  moe::run_result result = predict(job);
  add_promised_totals(job, result);
  result.unflattened = before;
  out << moe::prediction_text(result) << moe::dispatch_line(result) << '\n'
      << moe::peak_table(result) << std::flush;
  if (o.growth) {
    result.growth = moe::growth_of(o, text.vocabulary, predict);
    out << '\n' << moe::growth_text(*result.growth) << std::flush;
  }
  if (before) out << '\n' << moe::comparison_table(result) << std::flush;
  write_files(o, result);
  if (!out) throw moe::output_error("standard output: writing what the run came to failed");
  const auto sound = [](const moe::run_result& of) {
    return of.prediction->found == 0 && of.prediction->trouble.empty();
  };
  return sound(result) && (!before || sound(*before)) ? 0 : 1;
}

// What a run reads before it begins.
struct input {
  moe::corpus text;
  std::optional<moe::safetensors_reader> initial;
  std::int64_t first_step = 0;
};

void read(const moe::options& o, input& to) {
#if defined(MOE_HAS_CUDA)
  if (o.backend == moe::backend_choice::cuda) moe::check_cuda();
#endif
  to.text = o.data.empty() ? moe::default_corpus(o.vocabulary) : moe::load_corpus(o.data, o.vocabulary);
  const moe::model_config model = moe::model_of(o, to.text.vocabulary);
  moe::check(model, moe::grid_of(o));
  if (const std::string& path = o.resume.empty() ? o.weights : o.resume; !path.empty()) {
    to.initial.emplace(path);
    if (!o.resume.empty()) to.first_step = moe::check_resumed(*to.initial, o, to.text);
    moe::check_state(*to.initial, model, !o.resume.empty());
  }
  // Refuses a text that is too short before a word is said.
  static_cast<void>(moe::token_sampler(to.text, o.context, o.seed));
}

int run(const moe::options& o, moe::process_team& team) {
  // With the results on standard output, what is for people goes to standard error.
  const bool json_on_output = o.json == "-";
  std::ostream& out = json_on_output ? std::cerr : std::cout;
  if (o.dry_run) return run_dry(o, out);
  input from;
  moe::training_job job;
  std::vector<moe::named_value> alike;
  team.together([&] {
    read(o, from);
    job.config = o;
    job.text = &from.text;
    job.initial = from.initial ? &*from.initial : nullptr;
    job.first_step = from.first_step;
    job.out = &out;
    job.processes = team.world();
    moe::check_memory_limit(job);
    // A launcher may give its processes a terminal though its own output goes to a file.
    job.terminal_width = job.processes != nullptr ? 0 : moe::terminal_width(json_on_output ? 2 : 1);
    if (team.size() > 1) alike = moe::must_agree(job);
  });
  team.agree_on(alike);
  if (team.first()) {
    if (!from.text.note.empty()) out << from.text.note << '\n';
    out << moe::corpus_lines(moe::summary_of(from.text)) << std::endl;
  }
  std::shared_ptr<const moe::run_result> before;
  if (o.compare && !o.parity) {
    moe::training_job unflattened = job;
    unflattened.config = moe::unflattened_of(o);
    if (team.first()) out << moe::first_run_line << std::flush;
    auto first = train(unflattened);
    team.on_first([&] {
      before = std::make_shared<const moe::run_result>(std::move(*first));
      out << moe::summary_line(*before) << "\n\n" << moe::second_run_line(o) << std::flush;
    });
  }
  std::optional<moe::parity_narrator> narrator;
  if (o.parity && team.first()) {
    narrator.emplace(job);
    job.compared = [&](const moe::parity_record& record, std::int64_t step) { narrator->step(record, step); };
  }
  std::optional<moe::run_result> result = train(job);
  team.on_first([&] {
    add_promised_totals(job, *result);
    if (before) result->unflattened = before;
    if (result->parity) out << moe::parity_summary(*result->parity, result->first_step);
    out << moe::summary_line(*result) << '\n'
        << moe::dispatch_line(*result) << '\n'
        << moe::peak_table(*result) << std::flush;
    if (result->unflattened) out << '\n' << moe::comparison_table(*result) << std::flush;
    write_files(o, *result);
    if (!out) throw moe::output_error("standard output: writing what the run came to failed");
  });
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return moe::run_program(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr, run,
                          moe::mpi_place_here(), moe::mpi_joiner());
}
