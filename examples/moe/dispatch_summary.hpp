// SPDX-License-Identifier: Apache-2.0
//
// What the dispatches of a run did, as one rank saw it: for the report.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moe {

struct dispatch_summary {
  std::int64_t calls = 0;       // of layers, forward only
  std::int64_t rounds = 0;      // of all these calls
  std::int64_t most_rounds = 0; // of one call
  std::int64_t moved = 0;       // experts' rows computed away from home: pieces, of all these calls
  std::uint64_t wire_bytes = 0; // sent to other ranks, backward included
  double native_skew = 1;       // the busiest rank's rows over the mean, at its largest, had none been moved
  double skew = 1;              // and as they were

  double rounds_per_call() const {
    return calls == 0 ? 0 : static_cast<double>(rounds) / static_cast<double>(calls);
  }
};

} // namespace moe
