// SPDX-License-Identifier: Apache-2.0
//
// One rank's part in one exchange: its lists, and how far its peers have come with them. A peer reads the
// list of sends in place, so nothing is queued and nothing is allocated; the lists lie where the caller says.
#pragma once

#include <plateau/config.hpp>
#include <plateau/exchange.hpp>

#include <cstddef>
#include <new>
#include <span>
#include <string>

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

// Bytes that the lists of one exchange take.
constexpr std::size_t exchange_list_bytes(std::size_t sends, std::size_t receives) {
  return sends * sizeof(posted_send) + receives * sizeof(posted_receive);
}

// Gives `call` its lists, laid down in `storage` (exchange_list_bytes, aligned for a pointer). Operations of
// zero bytes are left out.
inline void post_lists(exchange_call& call, unsigned char* storage, send_list sends, receive_list receives) {
  static_assert(sizeof(posted_send) % alignof(posted_receive) == 0);
  const auto append = [&storage](auto& list, auto op) {
    auto* const at = ::new (static_cast<void*>(storage)) auto(op);
    storage += sizeof(op);
    list = {list.empty() ? at : list.data(), list.size() + 1};
  };
  call.sends = {};
  call.receives = {};
  for (const send_op& s : sends)
    if (s.bytes != 0) append(call.sends, posted_send{s.p, s.bytes, s.peer});
  for (const receive_op& r : receives)
    if (r.bytes != 0) append(call.receives, posted_receive{r.p, nullptr, r.bytes, r.peer});
}

// What is said of a send and a receive that do not agree. Ranks as errors name them.
inline std::string sizes_differ(std::size_t which, int from, int to, std::size_t sent, std::size_t expected) {
  return "send " + std::to_string(which) + " of rank " + std::to_string(from) + " to rank " +
         std::to_string(to) + " has " + std::to_string(sent) + " bytes, but rank " + std::to_string(to) +
         " expects " + std::to_string(expected);
}

} // namespace plateau::inline v0::host
