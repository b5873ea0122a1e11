// SPDX-License-Identifier: Apache-2.0
//
// A streamed AdamW on threads: the bits of the same steps without it, for every bucket size, number of slots,
// place of gradients, masters and update; its memory to the byte; what is refused, and what is left of the
// state when something fails.

#include "support/adamw_case.hpp"
#include "support/rank_fixtures.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::device_space, pl::host_space, pl::index_t, pl::update_on;
using support::adamw_case, support::adamw_at_once, support::run_adamw;
using threads = support::on_threads<>;

namespace {

adamw_case several_tensors() {
  adamw_case c;
  c.tensors = {{100, 0}, {0, 0}, {1, 1, false}, {33, 1}, {64, 0, false}, {2, 1}, {0, 1}};
  c.groups = {{3e-3, 0.9, 0.99, 1e-8, 0.1}, {1e-2, 0.8, 0.999, 1e-6, 0}};
  c.absent = {{}, {2, 4}, {0}, {}};
  c.steps = 4;
  return c;
}

template <class G, class P, class GS, class MS> void check_bits(const adamw_case& c, int ranks) {
  const auto found = run_adamw<G, P, GS, MS>(c, ranks, threads());
  for (int r = 0; r < ranks; ++r) {
    CAPTURE(r);
    const auto& mine = found[static_cast<std::size_t>(r)];
    CHECK(mine.norms == found[0].norms);
    CHECK(mine.counted.host_round_trips == 0);
    CHECK(mine.same_state(adamw_at_once<G, P>(c, r, mine.norms)));
  }
}

} // namespace

TEST_CASE("the bits of the update at once, whatever the buckets and the slots") {
  adamw_case c = several_tensors();
  for (const index_t bucket : {1, 7, 16, 64, 1000})
    for (int slots = 1; slots <= 4; ++slots) {
      CAPTURE(bucket);
      CAPTURE(slots);
      c.shape = {bucket, slots};
      check_bits<float, bfloat16, device_space, host_space>(c, 1);
      if (bucket != 7 && bucket != 64) continue;
      check_bits<bfloat16, float, host_space, host_space>(c, 2);
      check_bits<float, float, device_space, device_space>(c, 1);
      c.shape.where = update_on::host;
      c.shape.host_threads = slots % 2 + 1;
      check_bits<bfloat16, bfloat16, device_space, host_space>(c, 2);
      check_bits<float, bfloat16, host_space, host_space>(c, 1);
    }
}
