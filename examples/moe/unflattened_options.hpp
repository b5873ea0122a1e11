// SPDX-License-Identifier: Apache-2.0
//
// The run that a flattened one is held against: the same training with nothing flattened, which writes no
// files and has no limit.
#pragma once

#include "options.hpp"

namespace moe {

inline options unflattened_of(options o) {
  o.flatten = {};
  o.dispatch_cap.reset();
  o.dispatch_slots.reset();
  o.placement.reset();
  o.foreign_experts.reset();
  o.vocabulary_tile.reset();
  o.hop_rows.reset();
  o.rotate.reset();
  o.host_budget_bytes.reset();
  o.keep_every.reset();
  o.bucket_bytes.reset();
  o.slots.reset();
  o.update_on.reset();
  o.zero1 = false;
  o.memory_limit_bytes.reset();
  o.compare = o.parity = false;
  o.parity_weights.reset();
  o.parity_tensors.reset();
  for (auto* path : {&o.save, &o.json, &o.trace, &o.svg, &o.record_routing}) path->clear();
  return o;
}

} // namespace moe
