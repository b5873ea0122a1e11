// SPDX-License-Identifier: Apache-2.0
//
// moe_train: trains a small mixture-of-experts transformer on any text, with ranks that are threads, and
// shows where its memory peaks lie.
#include "command_line.hpp"
#include "report.hpp"
#include "result_json.hpp"
#include "training_run.hpp"

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#if defined(MOE_HAS_BLAS)
#include <cblas.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

// The unflattened peaks allocate and free large blocks in every step. Keeping them saves the page faults of
// first touch.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_ARENA_MAX, 1);
#endif
}

moe::run_result train(const moe::training_job& job) {
  const bool bf16 = job.config.dtype == moe::compute_type::bf16;
#if defined(MOE_HAS_BLAS)
  if (job.config.gemm == moe::gemm_choice::blas) {
    openblas_set_num_threads(1); // each rank has its own thread already
    return bf16 ? moe::train_blas_bf16(job) : moe::train_blas_fp32(job);
  }
#endif
  return bf16 ? moe::train_builtin_bf16(job) : moe::train_builtin_fp32(job);
}

int run(const moe::options& o) {
  // With the results on standard output, what is for people goes to standard error.
  const bool json_on_output = o.json == "-";
  std::ostream& out = json_on_output ? std::cerr : std::cout;
  const moe::corpus text =
      o.data.empty() ? moe::default_corpus(o.vocabulary) : moe::load_corpus(o.data, o.vocabulary);
  moe::training_job job;
  job.config = o;
  job.text = &text;
  job.out = &out;
  job.terminal_width = moe::terminal_width(json_on_output ? 2 : 1);

  const moe::model_config model = moe::model_of(o, text.vocabulary);
  moe::check(model, moe::grid_of(o));
  std::optional<moe::safetensors_reader> initial;
  if (const std::string& path = o.resume.empty() ? o.weights : o.resume; !path.empty()) {
    initial.emplace(path);
    if (!o.resume.empty()) job.first_step = moe::check_resumed(*initial, o, text);
    moe::check_state(*initial, model, !o.resume.empty());
    job.initial = &*initial;
  }
  // Refuses a text that is too short before a word is said.
  static_cast<void>(moe::token_sampler(text, o.context, o.seed));
  if (!text.note.empty()) out << text.note << '\n';
  out << moe::corpus_lines(moe::summary_of(text)) << std::endl;
  const moe::run_result result = train(job);
  out << moe::summary_line(result) << "\n\n" << moe::peak_table(result) << std::flush;
  if (!o.json.empty()) moe::write_json(o.json, result);
  if (!out) throw moe::output_error("standard output: writing what the run came to failed");
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return moe::run_program(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr, run);
}
