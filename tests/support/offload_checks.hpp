// SPDX-License-Identifier: Apache-2.0
//
// What any backend must pass with parked tensors: random programs read what they wrote, and a sequence of
// layers has the bits that the same layers have with every input kept.
#pragma once

#include "support/offload_layers.hpp"
#include "support/offload_program.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace support {

template <class Backend> void check_offload_programs(std::uint64_t seeds) {
  std::uint64_t restored = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    offload_program p;
    p.seed = seed;
    Backend be;
    const auto r = p.run(be);
    CHECK(r.read == r.expected);
    CHECK(be.device().meter().current() + be.pinned().meter().current() == 0);
    restored += r.statistics.restored;
  }
  CHECK(restored > seeds);
}

template <class Backend, class T> void check_offload_sequence(index_t rows) {
  offload_net n;
  n.rows = rows;
  n.layers = 7;
  n.hidden = 32;
  n.passes = 2;
  n.backward = {1, 0, 0};
  n.steps = 2;
  for (const int every : {1, 3}) {
    CAPTURE(every);
    n.keep_every = every;
    Backend be;
    const auto expected = n.run<again::kept, T>(be, false), found = n.run<again::kept, T>(be);
    CHECK(same_bits(found.y, expected.y));
    CHECK(same_bits(found.dx, expected.dx));
    CHECK(same_bits(found.dw, expected.dw));
    CHECK(found.statistics.restored > 0);
    CHECK(found.statistics.most_on_device == 2);
    CHECK(found.work.host_round_trips == 0);
  }
}

} // namespace support
