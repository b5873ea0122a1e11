// SPDX-License-Identifier: Apache-2.0
//
// A streamed AdamW on ranks of any kind with data, by bits: gradients and masters on either side, the update
// too, several buckets, tensors without gradients, a step that is skipped.
#pragma once

#include "support/adamw_case.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace support {

template <class G, class P, class GradientSpace, class MasterSpace, class Ranks>
void check_adamw(const Ranks& on, int ranks, pl::update_on where, index_t longest = 3000) {
  adamw_case c;
  c.tensors = {{longest, 0}, {0, 0}, {1, 1, false}, {longest / 3, 1}, {64, 0, false}};
  c.groups = {{3e-3, 0.9, 0.99, 1e-8, 0.1}, {1e-2, 0.8, 0.999, 1e-6, 0}};
  c.absent = {{}, {2, 4}, {}, {0}};
  c.bad_rank = ranks - 1, c.bad_step = 2, c.bad_element = longest;
  c.steps = 5;
  for (const int slots : {1, 2, 3}) {
    c.shape = {longest / 4 + 7, slots, where};
    const auto found = run_adamw<G, P, GradientSpace, MasterSpace>(c, ranks, on);
    for (int r = 0; r < ranks; ++r) {
      const auto& mine = found[static_cast<std::size_t>(r)];
      CHECK_FALSE(pl::is_finite(mine.norms[2]));
      CHECK(mine.norms[4] == found[0].norms[4]);
      CHECK(mine.counted.host_round_trips == 0);
      CHECK(mine.same_state(adamw_at_once<G, P>(c, r, mine.norms)));
    }
  }
}

template <class Ranks> void check_adamws(const Ranks& on, int ranks, index_t longest = 3000) {
  using pl::bfloat16, pl::device_space, pl::host_space, pl::update_on;
  check_adamw<float, bfloat16, device_space, host_space>(on, ranks, update_on::device, longest);
  check_adamw<bfloat16, float, host_space, host_space>(on, ranks, update_on::device, longest);
  check_adamw<bfloat16, bfloat16, device_space, device_space>(on, ranks, update_on::device, longest);
  check_adamw<float, bfloat16, device_space, host_space>(on, ranks, update_on::host, longest);
}

} // namespace support
