// SPDX-License-Identifier: Apache-2.0
//
// What has been given out and not given back, at any time and once more when the program ends.
#pragma once

#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/process.hpp>
#include <cuda_stand_in/stream.hpp>

#include <string>

namespace cuda_stand_in {

struct holdings {
  std::size_t streams = 0, events = 0, device_allocations = 0, pinned_allocations = 0;
  std::size_t device_bytes = 0, pinned_bytes = 0;
  bool operator==(const holdings&) const = default;
};
inline holdings held() {
  holdings h;
  h.streams = given_out().streams.living();
  h.events = given_out().events.living();
  for (const allocation& a : memory().device.living()) {
    ++h.device_allocations;
    h.device_bytes += a.bytes;
  }
  for (const allocation& a : memory().pinned.living()) {
    ++h.pinned_allocations;
    h.pinned_bytes += a.bytes;
  }
  return h;
}

// Gives back all that is still out, for a test in which giving back was made to fail.
inline void give_everything_back() {
  given_out().streams.take_all([](CUstream_st& s) { s.close(); });
  wait_for_closed_streams();
  given_out().events.take_all([](CUevent_st& e) { e.replace(nullptr); });
  for (arena* a : {&memory().device, &memory().pinned})
    for (const allocation& one : a->living()) {
      allocation gone;
      a->release(a->shown(one.address), gone);
    }
}

inline void report_leaks() {
  if (held() == holdings{}) return;
  const auto plural = [](std::size_t n, const char* what) { return std::to_string(n) + " " + what; };
  const holdings h = held();
  report("at the end there still are " + plural(h.streams, "streams, ") + plural(h.events, "events, ") +
         plural(h.device_allocations, "device allocations of ") + plural(h.device_bytes, "bytes, ") +
         plural(h.pinned_allocations, "pinned ones of ") + plural(h.pinned_bytes, "bytes"));
  const auto list = [](const char* what, arena& a) {
    for (const allocation& one : a.living())
      report(std::string(what) + " allocation number " + std::to_string(one.number) + ", " +
             std::to_string(one.bytes) + " bytes, was not freed");
  };
  list("device", memory().device);
  list("pinned", memory().pinned);
}
inline const bool leaks_are_watched = (here().at_exit.push_back(&report_leaks), true);

} // namespace cuda_stand_in
