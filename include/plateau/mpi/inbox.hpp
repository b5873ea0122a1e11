// SPDX-License-Identifier: Apache-2.0
//
// What has come from other processes for one communicator: the order of operations as all have issued them,
// and messages that nobody here has taken yet, since a fast rank may be ahead.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/issue_log.hpp>
#include <plateau/mpi/packet.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace plateau::inline v0::mpi {

// What the first number of a packet says that it is.
enum class message : std::uint64_t {
  note,     // what a rank sends and expects in an exchange: context, sequence, what, index, three size lists
  integers, // of a host exchange: context, sequence, what, round, how many blocks, their lengths, values
  cause,    // of the group's failure: provisional, rank, sequence, operation, text
  left,     // this rank takes part in nothing more
  goodbye,  // and sends nothing more
  progress, // this rank has completed an operation
  waits,    // and has been waiting for long: key, sequence, operation, how many ranks, which
  moves_on  // the wait of that key has ended
};

struct arrival {
  int from = -1;            // origin rank
  std::uint64_t number = 0; // note: index of the exchange; integers: sequence
  std::uint64_t round = 0;
  packet content{};
  std::size_t read = 0; // where what has not been read begins
};

struct inbox {
  inbox() {
    notes.reserve(16);
    integers.reserve(16);
  }
  // Guarded by the lock of the link.
  host::issue_log log;
  std::uint64_t exchanges_ended = 0;
  std::vector<arrival> notes, integers;

  static std::optional<arrival> take(std::vector<arrival>& list, auto matches) {
    const auto it = std::find_if(list.begin(), list.end(), matches);
    if (it == list.end()) return std::nullopt;
    std::optional<arrival> found(std::move(*it));
    list.erase(it);
    return found;
  }
};

} // namespace plateau::inline v0::mpi
