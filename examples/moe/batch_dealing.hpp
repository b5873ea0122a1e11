// SPDX-License-Identifier: Apache-2.0
//
// Which sequences of a step are whose: a step is cut into micro-batches, and each of them is dealt over the
// ranks, or over groups of neighbouring ranks that share each sequence of theirs, balanced as causal
// attention wants it. Plain integers, the same on every rank.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/scenario_shares.hpp>
#include <plateau/ring/sequence_split.hpp>

namespace moe {

using plateau::index_t;

struct batch_dealing {
  index_t batch = 1;      // sequences of a step
  index_t accumulate = 1; // micro-batches of a step
  plateau::share_form shares;
  index_t sequence_ranks = 1; // of a group that shares each sequence; divides the ranks

  // Sequences of micro-batch `micro` in [0, accumulate), counted over the step.
  plateau::share_range all_of(index_t micro) const {
    return {batch * micro / accumulate, batch * (micro + 1) / accumulate};
  }
  // Of `count` sequences the rank's own: those of its group.
  plateau::share_range own_of_all(index_t count, index_t rank, index_t ranks) const {
    return plateau::share_of(shares, rank / sequence_ranks, ranks / sequence_ranks, count);
  }
  // Of a micro-batch, counted over the step.
  plateau::share_range own_of(index_t micro, index_t rank, index_t ranks) const {
    const plateau::share_range all = all_of(micro);
    const plateau::share_range own = own_of_all(all.size(), rank, ranks);
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
    return plateau::largest_share(shares, ranks / sequence_ranks, (batch + accumulate - 1) / accumulate);
  }

  // How the ranks of a group share a sequence of `context` tokens; rank r has part r % sequence_ranks.
  plateau::sequence_split split(index_t context) const {
    return plateau::sequence_split::balanced(context, static_cast<int>(sequence_ranks));
  }
  // Tokens of each of its sequences that a rank has.
  index_t rows_of(index_t rank, index_t context) const {
    return split(context).rows(static_cast<int>(rank % sequence_ranks));
  }
  // Tokens of a micro-batch on the rank that has most.
  index_t largest_tokens(index_t ranks, index_t context) const {
    return largest(ranks) * split(context).most_rows();
  }
};

} // namespace moe
