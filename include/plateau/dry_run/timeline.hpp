// SPDX-License-Identifier: Apache-2.0
//
// What solving recorded programs gives: when each rank was done, and where its time went.
#pragma once

#include <plateau/config.hpp>
#include <plateau/trace/trace.hpp>

#include <string>
#include <vector>

namespace plateau::inline v0::dry {

// Where a rank's time went, and what it did, from the beginning on. Times in seconds.
struct rank_account {
  double seconds = 0;          // of its host and its streams
  double compute_busy = 0;     // while kernels, products or copies within device memory run
  double transfer_busy = 0;    // while the host link or exchanges carry something
  double exposed_transfer = 0; // while transfers run, or an exchange waits for peers, but nothing computes
  double host_blocked = 0;     // while the host waits for streams or other hosts
  std::uint64_t operations = 0, exchanges = 0, host_exchanges = 0;
  std::uint64_t host_round_trips = 0; // waits of the host that ended in a fetch
  double flops = 0;                   // of matrix products
  std::uint64_t sent_bytes = 0;       // to other ranks

  friend rank_account operator-(rank_account a, const rank_account& b) {
    a.seconds -= b.seconds;
    a.compute_busy -= b.compute_busy;
    a.transfer_busy -= b.transfer_busy;
    a.exposed_transfer -= b.exposed_transfer;
    a.host_blocked -= b.host_blocked;
    a.operations -= b.operations;
    a.exchanges -= b.exchanges;
    a.host_exchanges -= b.host_exchanges;
    a.host_round_trips -= b.host_round_trips;
    a.flops -= b.flops;
    a.sent_bytes -= b.sent_bytes;
    return a;
  }
};

// A moment that the program has marked: when its host came by, and what the rank had done until then. What
// runs on streams at that moment is in the account as far as it has come; a program that wants all of it
// waits first.
struct marked_moment {
  const char* name = "";
  rank_account so_far;
};

// Of one program: the account at its end.
struct rank_times : rank_account {
  int rank = 0; // whose program it is
  std::vector<marked_moment> marks;
};

struct timeline {
  bool complete = false;
  std::string trouble;           // why not, in one sentence with lines; empty if complete
  double seconds = 0;            // of the last rank
  std::vector<rank_times> ranks; // by program
  trace events;                  // if asked for
};

} // namespace plateau::inline v0::dry
