// SPDX-License-Identifier: Apache-2.0
//
// Which operation of a communicator comes n-th: written down by the rank that issues it first, compared by
// the others, so that ranks that start collectives in different orders learn it at once and not by a
// deadline. A fixed ring of entries; a rank that lags behind by more than its length is not compared.
#pragma once

#include <plateau/config.hpp>

#include <array>
#include <cstring>
#include <string>

namespace plateau::inline v0::host {

enum class operation_kind : unsigned char { exchange, host_exchange };

class issue_log {
 public:
  struct entry {
    std::uint64_t number = 0; // of the operation, from 1; 0: never written
    const char* what = nullptr;
    operation_kind kind = operation_kind::exchange;
    int rank = -1; // that issued it first

    bool same(operation_kind k, const char* w) const { return kind == k && std::strcmp(what, w) == 0; }
  };

  // The entry that contradicts this one, or nullptr. `what` must live as long as the log: a literal.
  const entry* compare(std::uint64_t sequence, operation_kind kind, const char* what, int rank) {
    entry& e = entries_[sequence % entries_.size()];
    if (e.number < sequence + 1) e = {sequence + 1, what, kind, rank};
    return e.number == sequence + 1 && !e.same(kind, what) ? &e : nullptr;
  }
  static std::string describe(operation_kind kind, const char* what) {
    return (kind == operation_kind::exchange ? "exchange '" : "host exchange '") + std::string(what) + "'";
  }
  // What is said when `rank` has issued this and another rank what `other` says. Ranks as errors name them.
  static std::string contradiction(std::uint64_t sequence, operation_kind kind, const char* what, int rank,
                                   const entry& other, int other_rank) {
    return "ranks issue operations in different orders: operation " + std::to_string(sequence) + " is " +
           describe(kind, what) + " on rank " + std::to_string(rank) + ", but " +
           describe(other.kind, other.what) + " on rank " + std::to_string(other_rank);
  }

 private:
  std::array<entry, 1024> entries_{};
};

} // namespace plateau::inline v0::host
