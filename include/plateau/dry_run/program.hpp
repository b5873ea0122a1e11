// SPDX-License-Identifier: Apache-2.0
//
// What one rank of a dry run did, in the order in which its host issued it: a flat list of small
// instructions, and the tables that they point into. It says what was asked of a machine, not how long a
// machine takes: `solve` gives times to the same program on one hardware or another. Nothing here depends on
// other ranks, so it is the same however the ranks' threads were scheduled.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/scalar.hpp>

#include <optional>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

// What of a machine an operation keeps busy.
enum class engine : unsigned char {
  compute,        // matrix products and kernels
  host_to_device, // the host link, inward
  device_to_host, // the host link, outward
  device_copy,    // within device memory
  host,           // code of the host in stream order
  network         // exchanges
};

// A name and the place in the source that used it. Names live for the whole program (literals, kernel_name).
struct label {
  const char* name = "";
  source_line at{};
};

enum class action : unsigned char {
  operation,     // on `stream`: engine, flops, bytes
  exchange,      // on `stream`: `index` into exchanges
  wait,          // `stream` waits until `other` has completed its first `count` commands
  host_wait,     // the host waits for that
  host_exchange, // the host waits for all ranks of a group; `index` into host_exchanges
  open_stream,   // `stream` begins, named by `name`; numbers are reused once a stream has closed
  close_stream,  // the host waits for all its work
  memory,        // the bytes that one tag holds: `other` is the pool (0 device, 1 pinned), `stream` the tag
  phase,         // the part of the program from here on, as the meter names it
  mark           // a moment of the host that the program wants to know
};

// What is counted as a command of a stream: operation, exchange, wait.
struct instruction {
  action what = action::operation;
  engine on = engine::compute;
  scalar_kind type = scalar_kind::fp32; // of a matrix product's operands: which rate it runs at
  unsigned char round_trip = 0;         // a host_wait that ends in a fetch
  std::uint16_t stream = 0;
  std::uint16_t other = 0;
  std::uint32_t name = 0;  // into labels
  std::uint32_t index = 0; // into a side table
  double flops = 0;        // of matrix products
  std::uint64_t bytes = 0; // moved, or held; or the count of a wait
};
static_assert(sizeof(instruction) == 32);

struct message {
  int peer = -1; // rank in the group
  std::size_t bytes = 0;
};

// One call of exchange. Exchanges of a group meet by their index.
struct exchange_record {
  std::uint32_t group = 0;              // into groups
  std::uint64_t index = 0;              // among the exchanges of the group
  std::vector<message> sends, receives; // in the order of the call, those of zero bytes left out
};
struct host_exchange_record {
  std::uint32_t group = 0;
  std::uint64_t index = 0; // among the host exchanges of the group
  std::size_t bytes = 0;   // that this rank gives
};
// A communicator of this rank. `path` names it alike on all ranks: "" is the outermost, "/0" the first that
// was split from it, "/0/1" the second that was split from that.
struct group_record {
  std::string path;
  std::vector<int> members; // ranks of the outermost communicator, by rank here
  int rank = 0;             // of this rank here
};

struct rank_program {
  int rank = 0; // in the outermost communicator
  std::vector<instruction> instructions;
  std::vector<label> labels;
  std::vector<std::string> stream_names; // of open_stream, by `name`
  std::vector<exchange_record> exchanges;
  std::vector<host_exchange_record> host_exchanges;
  std::vector<group_record> groups;
  std::optional<failure> ended_by; // what the rank left with, if it failed
};

} // namespace plateau::inline v0::dry
