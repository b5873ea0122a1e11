// SPDX-License-Identifier: Apache-2.0
//
// One round, as the rank sees it: which rows of which segments it sends where, which arrive from whom, and
// where each block lies in its slot. Sent rows lie segment by segment. Received ones lie segment first, then
// source, so that the rows of one expert are one block. The k-th block from a to b is the k-th in both lists,
// which is how an exchange matches them. Pure arithmetic; made for the largest round, then filled again and
// again.
#pragma once

#include <plateau/all_to_all/round_block.hpp>
#include <plateau/all_to_all/segment_table.hpp>
#include <plateau/config.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace plateau::inline v0::detail::dispatch {

// `rows` rows from `first` on in a slot, to or from a peer.
struct peer_block {
  int peer = 0;
  index_t segment = 0, first = 0, rows = 0;
};

class dispatch_round {
 public:
  dispatch_round(int ranks, index_t most_segments, index_t most_local_segments) {
    sends.reserve(static_cast<std::size_t>(most_segments));
    receives.reserve(static_cast<std::size_t>(most_local_segments * ranks));
    experts.reserve(static_cast<std::size_t>(most_local_segments));
    segments.reserve(static_cast<std::size_t>(most_local_segments));
    offsets.reserve(static_cast<std::size_t>(most_local_segments) + 1);
  }

  // `blocks` of the round, sorted by segment and source.
  void fill(std::span<const round_block> blocks, const segment_table& table, int me) {
    sends.clear();
    receives.clear();
    experts.clear();
    segments.clear();
    offsets.clear();
    sent_rows = received_rows = groups_of_all = 0;
    index_t last = -1;
    for (const round_block& b : blocks) {
      if (b.segment != last) ++groups_of_all;
      last = b.segment;
      const segment to = table[b.segment];
      if (b.source == me) {
        sends.push_back({to.rank, b.segment, sent_rows, b.rows});
        sent_rows += b.rows;
      }
      if (to.rank != me) continue;
      if (segments.empty() || segments.back() != b.segment) {
        segments.push_back(b.segment);
        experts.push_back(to.expert);
        offsets.push_back(received_rows);
      }
      receives.push_back({b.source, b.segment, received_rows, b.rows});
      received_rows += b.rows;
    }
    offsets.push_back(received_rows);
  }

  std::vector<peer_block> sends, receives;
  std::vector<index_t> segments; // (groups)
  std::vector<index_t> experts;  // (groups)
  std::vector<index_t> offsets;  // (groups + 1)
  index_t sent_rows = 0, received_rows = 0;
  index_t groups_of_all = 0; // on all ranks
  index_t sent_before = 0;   // by this rank in earlier rounds
};

} // namespace plateau::inline v0::detail::dispatch
