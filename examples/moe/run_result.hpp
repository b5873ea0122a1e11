// SPDX-License-Identifier: Apache-2.0
//
// What a run leaves behind: plain data, filled by the training loop and shown by report.hpp and
// result_json.hpp.
#pragma once

#include "corpus.hpp"
#include "dispatch_summary.hpp"
#include "growth_table.hpp"
#include "options.hpp"
#include "parity.hpp"

#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/timeline.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace moe {

// The highest point of one tag on one rank in one memory space, or of all tags together.
struct peak_record {
  int rank = 0;
  std::string tag;   // as plateau::name_of has it: "parameters", "dispatch", ...
  std::string space; // "device" or "host"
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> promised;             // by a working set; none while the peak is not flattened
  std::map<std::string, std::uint64_t> held_at_peak; // bytes of every tag at that moment
  std::string phase;                                 // of the run: "construction", "loss", "backward", ...
};

// Those of one rank.
struct rank_peaks {
  std::vector<peak_record> peaks;      // of training, per tag and space
  std::vector<peak_record> totals;     // per space, over all tags; their own tag is not used
  std::vector<peak_record> evaluation; // such totals, where the device held more after training
};

// Ranks of a dry run that are alike, and what one step takes each of them.
struct kind_of_rank {
  int rank = 0;           // the first of them
  std::int64_t ranks = 1; // how many they are
  plateau::dry::rank_account step;
};

// What a dry run says of one step.
struct prediction {
  plateau::hardware machine;
  std::string trouble;               // why there is no time, or empty
  double step_seconds = 0;           // of all ranks, which end a step together
  std::vector<kind_of_rank> kinds;   // by rank
  std::uint64_t operations = 0;      // recorded, of all kinds
  std::uint64_t found = 0;           // by the check of stream order
  std::vector<std::string> findings; // the first of them
  std::string routing_note;          // or empty
};

struct corpus_summary {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t tokens = 0;
  std::int64_t vocabulary = 0;
  std::uint64_t digest = 0;
  double entropy = 0; // nats
};

inline corpus_summary summary_of(const corpus& text) {
  return {text.name, text.bytes, text.tokens.size(), text.vocabulary, text.digest, text.entropy};
}

// Of a run on GPUs. Versions as CUDA counts them: 12040 is 12.4.
struct gpu_summary {
  std::string name; // of the first; empty where it does not tell
  int count = 0;    // that ranks ran on
  std::uint64_t bytes = 0;
  int driver = 0, runtime = 0;
};

struct run_result {
  // Not by assignment: GCC 12 then warns of what it takes for uninitialised in the options' variant.
  explicit run_result(const options& o) : config(o) {}
  run_result() = default;

  options config;
  corpus_summary text;
  std::int64_t first_step = 0;               // of `losses`; not 0 after a resume
  std::vector<double> losses;                // one a step
  std::optional<double> loss_heldout;        // at the end
  std::int64_t steps_skipped = 0;            // their gradient norm was not finite
  double tokens_per_second = 0;              // over all ranks
  std::vector<peak_record> peaks;            // as in rank_peaks, by rank
  std::vector<peak_record> totals;           // the same
  std::vector<peak_record> evaluation;       // the same
  std::optional<dispatch_summary> dispatch;  // of rank 0 in training, where it goes by rounds
  std::optional<moe::prediction> prediction; // of a dry run, which has no losses
  std::optional<growth_table> growth;        // of a dry run that was asked for it
  std::optional<plateau::trace> trace;       // where one was asked for
  std::optional<gpu_summary> gpus;           // with --backend cuda
  // Where the trace's names lie, if they are not the program's own.
  std::shared_ptr<const std::set<std::string>> trace_names;
  std::string routing; // CSV, where it was to be recorded
  // With --compare or --parity: of the training with nothing flattened, and how far the two are apart.
  std::shared_ptr<const run_result> unflattened;
  std::optional<parity_record> parity;
};

// Device bytes of the rank that holds most.
inline std::uint64_t highest_device_peak(const run_result& result) {
  std::uint64_t highest = 0;
  for (const peak_record& total : result.totals)
    if (total.space == "device") highest = std::max(highest, total.bytes);
  return highest;
}
// Whether a dry run's ranks fit their devices; nothing where the machine does not say how much they have.
inline std::optional<bool> fits_device(const run_result& result) {
  if (!result.prediction || result.prediction->machine.device_bytes == 0) return std::nullopt;
  return highest_device_peak(result) <= result.prediction->machine.device_bytes;
}

} // namespace moe
