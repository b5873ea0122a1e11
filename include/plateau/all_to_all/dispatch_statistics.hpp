// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch did in its last call, for the log and for choosing a cap.
#pragma once

#include <plateau/config.hpp>

#include <cstdint>

namespace plateau::inline v0 {

struct dispatch_statistics {
  index_t rounds = 0;
  index_t send_cap_rows = 0, receive_cap_rows = 0; // those kept: larger than asked where rounds are limited
  index_t rows_sent = 0, rows_received = 0;        // of this rank, its own to itself included
  std::uint64_t wire_bytes = 0;                    // sent to other ranks: rows both ways, weights, gradients
  index_t segments = 0;                            // of all ranks: what one rank computes of one expert
  index_t groups = 0;                              // of all ranks and rounds: a segment's rows in one round
  index_t moved_experts = 0;                       // pieces of experts computed away from home, on all ranks
  index_t largest_native_load = 0;                 // rows of the busiest rank if none were moved
  index_t largest_load = 0;                        // and as they are
  index_t all_rows = 0;                            // of all ranks
  int ranks = 0;
  index_t fewest_group_rows = 0; // as the shape has it, for advice
  // How long the caller's stream waited for transfers; only where the shape asks for it, complete when
  // the host has waited for the stream.
  double stall_seconds = 0;

  double native_skew() const { return skew(largest_native_load); } // busiest rank / mean
  double skew() const { return skew(largest_load); }
  double rows_per_group() const {
    return groups == 0 ? 0 : static_cast<double>(all_rows) / static_cast<double>(groups);
  }

  // What the numbers say of the cap, the same on every rank; empty if nothing. An expert's weights are read
  // once for each group, and its gradients read and written, so that groups of few rows are bound by that
  // traffic, not by their products. With few rounds next to nothing travels under a compute.
  const char* advice() const {
    if (rounds > 1 && groups >= 2 * segments && rows_per_group() < static_cast<double>(fewest_group_rows))
      return "the cap is too fine: rounds cost more than they save, with too few rows in a product";
    if (rounds > 0 && rounds < 4 && ranks > 1)
      return "the cap is too coarse: with more rounds transfers would run under compute, in smaller slots";
    return "";
  }

 private:
  double skew(index_t load) const {
    return all_rows == 0 ? 1 : static_cast<double>(load) * ranks / static_cast<double>(all_rows);
  }
};

} // namespace plateau::inline v0
