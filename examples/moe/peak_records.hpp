// SPDX-License-Identifier: Apache-2.0
//
// The meters of a rank's memory as records of a run's result.
#pragma once

#include "peak_promise.hpp"
#include "run_result.hpp"

#include <plateau/meter.hpp>
#include <plateau/tag.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moe {

// Names the part of the program that runs from here on, in the meters of both spaces.
template <class Backend> void set_phase(Backend& backend, const char* name) {
  backend.device().meter().phase(name);
  backend.pinned().meter().phase(name);
}

namespace detail {

inline peak_record record_of(int rank, const char* tag, const char* space, const plateau::peak& p) {
  peak_record r;
  r.rank = rank;
  r.tag = tag;
  r.space = space;
  r.bytes = p.bytes;
  for (std::size_t i = 0; i < plateau::tag_count; ++i)
    if (p.held[i] != 0) r.held_at_peak[plateau::name_of(plateau::all_tags[i])] = p.held[i];
  if (p.bytes == 0) r.held_at_peak[tag] = 0;
  r.phase = p.phase;
  return r;
}

// The four peaks that can be flattened are reported even where they never held a byte of device memory.
inline bool always_reported(const char* tag) {
  return std::any_of(flatten_rows.begin(), flatten_rows.end(),
                     [&](const auto& row) { return row.name == tag; });
}

// The peaks of one rank, of each tag and of all together, in both spaces.
template <class Backend> void add_peaks(Backend& backend, int rank, rank_peaks& to) {
  const auto add = [&](const plateau::meter& meter, const char* space, bool with_empty) {
    for (const plateau::tag t : plateau::all_tags)
      if (meter.peak(t).bytes != 0 || (with_empty && always_reported(plateau::name_of(t))))
        to.peaks.push_back(record_of(rank, plateau::name_of(t), space, meter.peak(t)));
    to.totals.push_back(record_of(rank, "total", space, meter.peak()));
  };
  add(backend.device().meter(), "device", true);
  add(backend.pinned().meter(), "host", false);
}

// The highest point of device memory since add_peaks(), where it is higher than that.
template <class Backend> void add_evaluation_peak(Backend& backend, int rank, rank_peaks& to) {
  const plateau::peak now = backend.device().meter().peak();
  for (const peak_record& total : to.totals)
    if (total.space == "device" && now.bytes > total.bytes)
      to.evaluation.push_back(record_of(rank, "total", "device", now));
}

// What was promised of the peaks that are flattened.
inline void add_promises(const std::vector<peak_promise>& promises, rank_peaks& to) {
  for (const peak_promise& promise : promises)
    for (peak_record& each : to.peaks)
      if (each.tag == plateau::name_of(promise.of))
        each.promised = each.space == "device" ? promise.most.device_bytes : promise.most.pinned_bytes;
}

} // namespace detail

inline void add_to_result(const rank_peaks& of_a_rank, run_result& result) {
  const auto append = [](std::vector<peak_record>& to, const std::vector<peak_record>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(result.peaks, of_a_rank.peaks);
  append(result.totals, of_a_rank.totals);
  append(result.evaluation, of_a_rank.evaluation);
}

} // namespace moe
