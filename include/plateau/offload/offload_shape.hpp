// SPDX-License-Identifier: Apache-2.0
//
// What is to be parked, as plain numbers: the tensors that a program keeps from forward to backward, in the
// order in which they are written, how much host memory they may take, and how many may be on the device at a
// time. Tensors of one kind share device slots, so give those that differ much in size kinds of their own:
// the input of each layer is kind 0; what a layer keeps beside it (saved ids, gates) has kinds 1 to 3.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace plateau::inline v0 {

inline constexpr int offload_kinds = 4;

// One tensor: at most so many bytes, written once a micro-batch.
struct offload_tensor {
  index_t bytes = 0;
  int kind = 0;
  // From the end of its use in forward to its use in backward; 0: not known. One that is idle for less than
  // it takes to go and come stays on the device, where the costs say how long that is.
  double idle_seconds = 0;
};

// What copies and layers take; 0: not known. None of them changes a result, or what memory is promised but
// for idle_seconds above.
struct offload_costs {
  double to_host_bytes_per_second = 0, to_device_bytes_per_second = 0;
  double forward_seconds = 0, backward_seconds = 0; // of the work between a tensor's turn and the next one's
  double recompute_seconds = 0;                     // of a tensor, instead of restoring it
};

struct offload_shape {
  static constexpr index_t no_limit = std::numeric_limits<index_t>::max();

  std::vector<offload_tensor> tensors;  // in the order of forward
  index_t host_budget_bytes = no_limit; // of pinned memory; 0: nothing is parked
  int restored_at_once = 2;             // of each kind: what is in use, and what comes next
  int in_flight = 1;                    // micro-batches whose backward has not ended
  bool restore_ahead = true; // backward is the last first; else prefetch() alone says what comes next
  offload_costs costs{};
  bool measure_stalls = false; // by host tasks on the caller's streams

  index_t count() const { return static_cast<index_t>(tensors.size()); }
  static index_t slot_bytes(index_t bytes) {
    return static_cast<index_t>(aligned_bytes(static_cast<std::size_t>(bytes)));
  }

  // Throws config_error for what cannot be.
  void check() const {
    const auto refuse = [](const std::string& what) { throw config_error("plateau: offload: " + what); };
    constexpr index_t most = std::numeric_limits<index_t>::max() / 2;
    index_t all = 0, largest = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto& [bytes, kind, idle] = tensors[t];
      const std::string name = "tensor " + std::to_string(t);
      if (bytes < 0) refuse(name + " has " + std::to_string(bytes) + " bytes: 0 or more are needed");
      if (kind < 0 || kind >= offload_kinds)
        refuse(name + " is of kind " + std::to_string(kind) + ": kinds are 0 to " +
               std::to_string(offload_kinds - 1));
      if (!(idle >= 0) || !std::isfinite(idle)) refuse(name + " is idle for no finite time of 0 or more");
      if (in_flight > 0 && (bytes > most / in_flight - 256 || all > most - (bytes + 256) * in_flight))
        refuse("the tensors up to " + name + " have more bytes than a size can say");
      all += (bytes + 256) * (in_flight > 0 ? in_flight : 1);
      largest = std::max(largest, bytes + 256);
    }
    if (host_budget_bytes < 0)
      refuse("a host budget of " + std::to_string(host_budget_bytes) + " bytes: 0 or more are needed");
    if (restored_at_once < 1)
      refuse("restored_at_once is " + std::to_string(restored_at_once) +
             ": 1 or more are needed; 2 let one come while the other is used");
    if (in_flight < 1)
      refuse("in_flight is " + std::to_string(in_flight) + ": 1 micro-batch or more is needed");
    const index_t slots = std::min<index_t>(count() * in_flight, restored_at_once);
    if (slots > 0 && largest > most / offload_kinds / slots)
      refuse(std::to_string(slots) +
             " slots as large as the largest tensor are more bytes than a size can say");
    for (const double c : {costs.to_host_bytes_per_second, costs.to_device_bytes_per_second,
                           costs.forward_seconds, costs.backward_seconds, costs.recompute_seconds})
      if (!(c >= 0) || !std::isfinite(c))
        refuse("a cost is negative or not finite: 0 says that it is not known");
  }

  // `layers` inputs of the same size, each idle while the layers behind it go forward and back. Nothing is
  // behind the last, whose idle time 0 says that it is not known: it is parked with the others and still has
  // its slot when it is wanted.
  static offload_shape of_layers(index_t layers, index_t bytes, index_t budget = no_limit,
                                 offload_costs costs = {}) {
    offload_shape s;
    for (index_t l = 0; l < layers; ++l)
      s.tensors.push_back(
          {bytes, 0, static_cast<double>(layers - 1 - l) * (costs.forward_seconds + costs.backward_seconds)});
    s.host_budget_bytes = budget;
    s.costs = costs;
    return s;
  }
};

} // namespace plateau::inline v0
