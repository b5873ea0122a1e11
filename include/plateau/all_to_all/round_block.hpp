// SPDX-License-Identifier: Apache-2.0
//
// The words in which plans of the dispatch speak. A segment is the part of one expert's rows that one rank
// computes: an expert has one at its home, and one on each rank that helps. A block is what one source sends
// to one segment in one round.
#pragma once

#include <plateau/config.hpp>

namespace plateau::inline v0 {

struct segment {
  index_t expert = 0;
  int rank = 0;
};

struct round_block {
  index_t segment = 0; // its number
  int source = 0;
  index_t rows = 0; // more than 0
};

} // namespace plateau::inline v0
