// SPDX-License-Identifier: Apache-2.0
//
// What a store has done since it was made, for the log and for choosing a budget. Counted by the host as it
// issues; only stalls are measured, and only where the shape asks for it.
#pragma once

#include <plateau/config.hpp>

#include <cstdint>

namespace plateau::inline v0 {

struct offload_statistics {
  std::uint64_t parked = 0, restored = 0; // copies
  std::uint64_t parked_bytes = 0, restored_bytes = 0;
  std::uint64_t late = 0;    // of the restored: not begun before they were asked for
  int most_on_device = 0;    // parked tensors of one kind that had a slot at a time: at most restored_at_once
  std::uint64_t dropped = 0; // restored ahead and given up for another one
  // How long the caller's streams waited for tensors to come, and for slots to be free. Complete when the
  // host has waited for those streams.
  double stall_seconds = 0;
  double recompute_seconds = 0; // of one tensor, as the costs of the shape have it

  double stall_of_one() const { return restored == 0 ? 0 : stall_seconds / static_cast<double>(restored); }
  // Empty if nothing.
  const char* advice() const {
    if (restored != 0 && recompute_seconds > 0 && stall_of_one() > recompute_seconds)
      return "restoring is slower than recomputing: keep the input of every second layer only, or more on "
             "the "
             "device";
    if (restored != 0 && 2 * late > restored)
      return "tensors are asked for in another order than the last first: ask for the next one ahead";
    return "";
  }
};

} // namespace plateau::inline v0
