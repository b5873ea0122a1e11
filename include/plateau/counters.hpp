// SPDX-License-Identifier: Apache-2.0
//
// What a backend was asked to do, counted at the seam: floating-point operations of matrix products, bytes
// moved, kernels launched, and the two things that a pipelined program must not do often: host round trips
// and host exchanges. Promises about work ("no product runs forward more than twice") are checked against
// these.
#pragma once

#include <plateau/config.hpp>

namespace plateau::inline v0 {

struct counters {
  std::uint64_t matrix_flops = 0;     // 2 m n k per product
  std::uint64_t matrix_products = 0;  // products of non-zero size
  std::uint64_t launches = 0;         // element and row kernels
  std::uint64_t copied_bytes = 0;     // copy()
  std::uint64_t sent_bytes = 0;       // exchange(), self-sends not counted
  std::uint64_t exchanges = 0;        // exchange()
  std::uint64_t host_round_trips = 0; // fetch()
  std::uint64_t host_exchanges = 0;   // integers, by the host channel

  friend constexpr counters operator-(counters a, const counters& b) {
    a.matrix_flops -= b.matrix_flops;
    a.matrix_products -= b.matrix_products;
    a.launches -= b.launches;
    a.copied_bytes -= b.copied_bytes;
    a.sent_bytes -= b.sent_bytes;
    a.exchanges -= b.exchanges;
    a.host_round_trips -= b.host_round_trips;
    a.host_exchanges -= b.host_exchanges;
    return a;
  }
};

} // namespace plateau::inline v0
