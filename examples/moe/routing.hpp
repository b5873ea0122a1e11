// SPDX-License-Identifier: Apache-2.0
//
// What a layer and its dispatch say to each other: where the routes of a rank's tokens lie, how many rows go
// from every rank to every expert, and the weights or gradients of the local experts.
#pragma once

#include <plateau/view.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

// Routed rows from every rank of the expert group to every expert, (expert_parallel, experts), on the host:
// all that outlives a layer's forward.
using routing_counts = std::vector<std::int64_t>;

// Where the routes of the rank's tokens lie when they are grouped by expert. (tokens * top_k) each.
struct routing_index {
  plateau::view<std::int32_t> order;    // the route at each place
  plateau::view<std::int32_t> position; // the place of each route
};

// The local experts: gate and up (intermediate, hidden), down (hidden, intermediate).
template <class T> struct expert_tensors {
  std::span<const plateau::tile<T>> gate;
  std::span<const plateau::tile<T>> up;
  std::span<const plateau::tile<T>> down;
};

} // namespace moe
