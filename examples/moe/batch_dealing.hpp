// SPDX-License-Identifier: Apache-2.0
//
// Which sequences of a step are whose: a step is cut into micro-batches, and each of them is dealt over the
// ranks. Plain integers, the same on every rank.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/scenario_shares.hpp>

namespace moe {

using plateau::index_t;

struct batch_dealing {
  index_t batch = 1;      // sequences of a step
  index_t accumulate = 1; // micro-batches of a step
  plateau::share_form shares;

  // Sequences of micro-batch `micro` in [0, accumulate), counted over the step.
  plateau::share_range all_of(index_t micro) const {
    return {batch * micro / accumulate, batch * (micro + 1) / accumulate};
  }
  // Of these, the rank's own.
  plateau::share_range own_of(index_t micro, index_t rank, index_t ranks) const {
    const plateau::share_range all = all_of(micro);
    const plateau::share_range own = plateau::share_of(shares, rank, ranks, all.size());
    return {all.first + own.first, all.first + own.last};
  }
  // Sequences of the rank in the micro-batches before `micro`; before `accumulate`, in the whole step.
  index_t own_before(index_t micro, index_t rank, index_t ranks) const {
    index_t sequences = 0;
    for (index_t m = 0; m < micro; ++m) sequences += own_of(m, rank, ranks).size();
    return sequences;
  }
  // At most, of any rank in any micro-batch.
  index_t largest(index_t ranks) const {
    return plateau::largest_share(shares, ranks, (batch + accumulate - 1) / accumulate);
  }
};

} // namespace moe
