// SPDX-License-Identifier: Apache-2.0
//
// When parking pays: a tensor goes out under the forward of the work behind it and comes back under the
// backward of the work before it; what does not fit under them is time lost, and worth it only as long as
// computing the tensor anew would take longer.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/offload/offload_plan.hpp>
#include <plateau/offload/offload_shape.hpp>

#include <algorithm>
#include <cmath>

namespace plateau::inline v0 {

struct offload_break_even {
  double park_seconds = 0, restore_seconds = 0;
  double exposed_seconds = 0;             // of both, what no work hides
  double recompute_seconds = 0;           // instead
  double hidden_bytes_per_second = 0;     // a link of this speed hides all of it
  double break_even_bytes_per_second = 0; // on a slower one, the same both ways, computing anew is faster
  int restored_at_once = 2;               // that hide what can be hidden: 1 and the prefetch distance

  bool pays() const { return exposed_seconds <= recompute_seconds; }
};

// Of a tensor of so many bytes. Throws config_error for costs of which one is not known.
inline offload_break_even break_even_of(index_t bytes, const offload_costs& c) {
  if (!(c.to_host_bytes_per_second > 0 && c.to_device_bytes_per_second > 0 && c.forward_seconds > 0 &&
        c.backward_seconds > 0 && c.recompute_seconds > 0))
    throw config_error(
        "plateau: offload: a break-even needs both rates of the link, and the seconds of forward, "
        "backward and recomputation");
  offload_break_even e;
  e.park_seconds = detail::offload::seconds_for(bytes, c.to_host_bytes_per_second);
  e.restore_seconds = detail::offload::seconds_for(bytes, c.to_device_bytes_per_second);
  e.exposed_seconds = std::max(0.0, e.park_seconds - c.forward_seconds) +
                      std::max(0.0, e.restore_seconds - c.backward_seconds);
  e.recompute_seconds = c.recompute_seconds;
  const double less = std::min(c.forward_seconds, c.backward_seconds),
               more = std::max(c.forward_seconds, c.backward_seconds);
  e.hidden_bytes_per_second = static_cast<double>(bytes) / less;
  // Link seconds t at which max(0, t - less) + max(0, t - more) is what recomputing takes.
  const double t = less + c.recompute_seconds <= more ? less + c.recompute_seconds
                                                      : (less + more + c.recompute_seconds) / 2;
  e.break_even_bytes_per_second = static_cast<double>(bytes) / t;
  e.restored_at_once =
      1 + std::max(1, static_cast<int>(std::min(1e6, std::ceil(e.restore_seconds / c.backward_seconds))));
  return e;
}

} // namespace plateau::inline v0
