// SPDX-License-Identifier: Apache-2.0
//
// What solving recorded programs gives: when each rank was done, and where its time went.
#pragma once

#include <plateau/config.hpp>
#include <plateau/trace/trace.hpp>

#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

// Of one program. All times in seconds since the beginning.
struct rank_times {
  int rank = 0;                // whose program it is
  double seconds = 0;          // at the end, of its host and its streams
  double compute_busy = 0;     // while kernels, products or copies within device memory run
  double transfer_busy = 0;    // while the host link or exchanges carry something
  double exposed_transfer = 0; // while transfers run, or an exchange waits for peers, but nothing computes
  double host_blocked = 0;     // while the host waits for streams or other hosts
  std::vector<std::pair<const char*, double>> marks; // when the host came by
  std::uint64_t operations = 0, exchanges = 0, host_exchanges = 0;
  std::uint64_t host_round_trips = 0; // waits of the host that ended in a fetch
  double flops = 0;                   // of matrix products
  std::uint64_t sent_bytes = 0;       // to other ranks
};

struct timeline {
  bool complete = false;
  std::string trouble;           // why not, in one sentence with lines; empty if complete
  double seconds = 0;            // of the last rank
  std::vector<rank_times> ranks; // by program
  trace events;                  // if asked for
};

} // namespace plateau::inline v0::dry
