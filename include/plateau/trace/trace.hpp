// SPDX-License-Identifier: Apache-2.0
//
// What happened when, and what was held: plain data, filled by a dry run's timeline or by a real run, and
// shown by the writers beside this header. Predicted and measured traces have the same form, so that they can
// be laid side by side.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/tag.hpp>
#include <plateau/working_set.hpp>

#include <string>
#include <vector>

namespace plateau::inline v0 {

enum class trace_kind : unsigned char { compute, copy, exchange, host, waiting };

constexpr const char* name_of(trace_kind k) {
  constexpr const char* names[] = {"compute", "copy", "exchange", "host", "waiting"};
  return names[static_cast<std::size_t>(k)];
}

// Seconds since the beginning of the trace. `name` and `at.file` live for the whole program.
struct trace_event {
  const char* name = "";
  source_line at{};
  int rank = 0;
  std::uint32_t stream = 0; // into streams
  trace_kind kind = trace_kind::compute;
  double begin = 0, end = 0;
  std::uint64_t bytes = 0; // moved, where it moves any
};
// From `at` on, `tag` holds `bytes` of a pool on this rank.
struct trace_memory {
  int rank = 0;
  memory_kind pool = memory_kind::device;
  plateau::tag tag = plateau::tag::other;
  double at = 0;
  std::size_t bytes = 0;
};
// From `at` on, this rank is in this part of the program.
struct trace_phase {
  int rank = 0;
  const char* name = "";
  double at = 0;
};

struct trace {
  std::string title;                // "predicted, H200, 64 ranks"
  std::vector<std::string> streams; // names; 0 is the host's thread
  std::vector<trace_event> events;  // by rank, then as they began
  std::vector<trace_memory> memory; // by rank, then in time
  std::vector<trace_phase> phases;  // by rank, then in time
};

} // namespace plateau::inline v0
