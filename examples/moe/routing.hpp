// SPDX-License-Identifier: Apache-2.0
//
// What a layer and its dispatch say to each other: how many rows go from every rank to every expert, and the
// weights or gradients of the local experts.
#pragma once

#include <plateau/view.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

// Routed rows from every rank of the expert group to every expert, (expert_parallel, experts), on the host.
using routing_counts = std::vector<std::int64_t>;

// The local experts: gate and up (intermediate, hidden), down (hidden, intermediate).
template <class T> struct expert_tensors {
  std::span<const plateau::tile<T>> gate;
  std::span<const plateau::tile<T>> up;
  std::span<const plateau::tile<T>> down;
};

} // namespace moe
