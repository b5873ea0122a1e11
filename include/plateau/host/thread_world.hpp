// SPDX-License-Identifier: Apache-2.0
//
// The world of ranks that are threads with the streams of the host: the worker of a stream carries out its
// exchanges and copies what peers have posted, with stores past the caches where there is much of it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/basic_thread_world.hpp>
#include <plateau/host/copy_bytes.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/stream.hpp>

#include <cstddef>

namespace plateau::inline v0::host {

struct memory_mover {
  using stream = host::stream;
  using call = exchange_call;
  static constexpr bool on_host_thread = false;

  explicit memory_mover(int) {}
  void receive(call& mine, call&, int peer, std::size_t bytes) const {
    const bool large = bytes >= streaming_copy_bytes;
    for (const posted_receive& r : mine.receives) {
      if (r.peer != peer) continue;
      if (large && r.bytes >= smallest_streamed_bytes)
        stream_bytes(r.p, r.from, r.bytes);
      else
        copy_bytes(r.p, r.from, r.bytes);
    }
    if (large) finish_streaming();
  }

 private:
  static constexpr std::size_t smallest_streamed_bytes = 4096;
};

using thread_world = basic_thread_world<memory_mover>;

} // namespace plateau::inline v0::host
