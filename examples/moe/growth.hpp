// SPDX-License-Identifier: Apache-2.0
//
// What memory grows with: the peaks of a configuration beside those of one that has twice as much of one
// thing (tokens, layers, experts, ...), and the same with nothing flattened. Peaks come from dry runs, byte
// for byte what meters count, so the differences are exact. Over a doubling and not over one more, since
// peaks grow by steps: a tile is full or not, a part of a workspace is rounded up, and of phases the largest
// counts.
#pragma once

#include "batch_dealing.hpp"
#include "growth_table.hpp"
#include "input_error.hpp"
#include "option_rules.hpp"
#include "options.hpp"
#include "run_result.hpp"
#include "training_job.hpp"
#include "unflattened_options.hpp"

#include <plateau/dry_run/presets.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace moe {

inline device_peaks device_peaks_of(const run_result& result) {
  device_peaks p;
  for (const peak_record& peak : result.peaks)
    if (peak.space == "device") {
      std::int64_t& highest = p.tags[peak.tag];
      highest = std::max(highest, static_cast<std::int64_t>(peak.bytes));
    }
  p.total = static_cast<std::int64_t>(highest_device_peak(result));
  return p;
}

namespace detail {

inline constexpr std::int64_t most_ranks = 256; // as --ranks takes them

// Twice as much of it, with how much that adds, in the row.
inline options doubled(const options& o, std::int64_t vocabulary, growth_row& row) {
  options more = o;
  const auto twice = [&](std::string_view flag, std::int64_t from, double units) {
    row.step = fmt::format("{} {} to {}", flag, from, 2 * from);
    row.units = units;
    return 2 * from;
  };
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  switch (row.kind) {
  case growth_kind::token:
    more.context =
        twice("--context", o.context,
              d(batch_dealing{o.batch, o.accumulate, o.routing.shares, o.sequence_parallel}.largest_tokens(
                  o.ranks, o.context)));
    break;
  case growth_kind::layer:
    more.layers = twice("--layers", o.layers, d(o.layers));
    break;
  case growth_kind::expert:
    more.experts = twice("--experts", o.experts, d(o.experts));
    break;
  case growth_kind::parameter:
    more.intermediate =
        twice("--intermediate", o.intermediate,
              d(o.layers) * d(o.experts / o.expert_ranks()) * 3 * d(o.hidden) * d(o.intermediate));
    break;
  case growth_kind::vocabulary_entry:
    more.vocabulary = twice("--vocabulary", vocabulary, d(vocabulary));
    break;
  case growth_kind::rank: {
    if (2 * o.ranks > most_ranks)
      throw input_error{
          fmt::format("{} ranks are more than the {} that a run may have", 2 * o.ranks, most_ranks)};
    // An expert group of all ranks stays one; of some, there are more groups.
    const bool one_group = o.ranks > 1 && o.expert_ranks() == o.ranks;
    more.ranks = twice(one_group ? "--ranks and --expert-parallel" : "--ranks", o.ranks, d(o.ranks));
    more.batch = 2 * o.batch;
    more.expert_parallel = one_group ? 2 * o.ranks : o.expert_ranks();
    if (one_group) more.experts = 2 * o.experts;
    break;
  }
  }
  return more;
}

} // namespace detail

// The peaks of a step of each shape. `predict` is one of the dry runs of dry_runs.hpp, which is given
// jobs for any configuration; two for each kind beside the first two. `vocabulary`: of the corpus, where the
// options leave it open. Needs a forced routing. Throws what the first two throw; a shape that the options'
// rules refuse, as a file of counts for fewer experts makes one, is a row that says why.
inline growth_table growth_of(const options& o, std::int64_t vocabulary,
                              const std::function<run_result(const training_job&)>& predict) {
  vocabulary = o.vocabulary.value_or(vocabulary);
  const auto peaks_of = [&](options config) {
    config.dry_run = true;
    config.memory_limit_bytes.reset(); // a peak beyond it is what is asked for
    config.check_order = false;
    for (std::string* file : {&config.trace, &config.svg, &config.json}) file->clear();
    check(config);
    corpus text;
    text.vocabulary = config.vocabulary.value_or(vocabulary);
    check(model_of(config, text.vocabulary), grid_of(config));
    training_job job;
    job.config = config;
    job.text = &text;
    job.machine = plateau::h200(); // bytes do not depend on it
    return device_peaks_of(predict(job));
  };
  growth_table table{o, {}};
  const options none = unflattened_of(o);
  const device_peaks given_peaks = peaks_of(o), none_peaks = peaks_of(none);
  for (const growth_kind kind : all_growth_kinds) {
    growth_row row;
    row.kind = kind;
    try {
      row.given = {given_peaks, peaks_of(detail::doubled(o, vocabulary, row))};
      row.none = {none_peaks, peaks_of(detail::doubled(none, vocabulary, row))};
    } catch (const input_error& error) {
      row.impossible = error.what();
    } catch (const plateau::error& error) {
      row.impossible = error.what();
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

} // namespace moe
