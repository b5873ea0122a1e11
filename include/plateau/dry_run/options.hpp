// SPDX-License-Identifier: Apache-2.0
//
// What a dry run is told: which of its parts are on, which fault to make, and who answers when a program asks
// for a value that only data would give.
#pragma once

#include <plateau/config.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace plateau::inline v0 {

// A fetch of a dry run: there is no data, so a scenario gives what the program would have read.
struct dry_fetch {
  int rank = 0;
  const char* label = "";   // as the fetch has it
  std::uint64_t number = 0; // of this rank's fetches with this label, from 0
  std::size_t element_bytes = 0;
  std::span<std::byte> into; // the values, as the program stores them
};

struct dry_options {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  // The check of stream order; the program for the timeline. Exact bytes and counters are always on.
  bool check_order = true;
  bool record_program = true;

  // Mutation: the wait with this number (of this rank, from 0; those of the host count too, waits that cannot
  // matter do not) is forgotten. Fault: the operation with this number throws backend_error when it is
  // issued.
  std::uint64_t drop_wait = never;
  std::uint64_t throw_at = never;
  int only_rank = -1; // that these two apply to; -1: every rank

  // Fills `into` and returns true, or returns false where it knows nothing of this fetch. It is asked before
  // the fetch's own dry answer is taken.
  std::function<bool(const dry_fetch&)> scenario = {};
};

} // namespace plateau::inline v0
