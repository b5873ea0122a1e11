// SPDX-License-Identifier: Apache-2.0
//
// One rank's part in one exchange: its lists, and how far its peers have come with them. A peer reads the
// list of sends in place, so nothing is queued and nothing is allocated.
#pragma once

#include <plateau/config.hpp>
#include <plateau/exchange.hpp>

#include <span>

namespace plateau::inline v0::host {

struct posted_send {
  const void* p = nullptr;
  std::size_t bytes = 0;
  int peer = -1;
  bool taken = false;
};
struct posted_receive {
  void* p = nullptr;
  const void* from = nullptr; // the peer's buffer, once matched
  std::size_t bytes = 0;
  int peer = -1;
  bool copied = false;
};

struct exchange_call {
  int rank = -1;              // in its communicator
  std::uint64_t index = 0;    // among the exchanges of the communicator
  std::uint64_t sequence = 0; // among all its operations
  const char* what = "";
  std::span<posted_send> sends{};
  std::span<posted_receive> receives{};

  bool received = false; // everything; what peers still send to us here is a mistake
  std::size_t taken = 0; // sends whose copies have ended
  int readers = 0;       // peers that copy from our buffers right now
};

} // namespace plateau::inline v0::host
