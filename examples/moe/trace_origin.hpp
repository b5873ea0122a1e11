// SPDX-License-Identifier: Apache-2.0
//
// The moment from which all ranks count the time of a trace. Ranks on one machine read the same clock and
// take rank 0's word for it; clocks of different machines have nothing in common, so ranks there begin when
// all of them have come.
#pragma once

#include <plateau/digest.hpp>
#include <plateau/trace/recorder.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace moe {

namespace detail {

// Equal for processes whose steady clocks are one.
inline std::uint64_t clock_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  plateau::digest d;
  return boot.empty() ? d.add(::getpid()).value() : d.add(boot).value();
}

} // namespace detail

// Collective.
template <class Communicator> plateau::trace_recorder::clock::time_point common_origin(Communicator& comm) {
  using clock = plateau::trace_recorder::clock;
  const std::int64_t mine[2] = {static_cast<std::int64_t>(detail::clock_identity()),
                                static_cast<std::int64_t>(clock::now().time_since_epoch().count())};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(comm.size()));
  comm.host_exchange(mine, all, "origin of time");
  const auto all_have_come = clock::now();
  for (std::size_t r = 0; r < all.size(); r += 2)
    if (all[r] != all[0]) return all_have_come;
  return clock::time_point(clock::duration(all[1]));
}

} // namespace moe
