// SPDX-License-Identifier: Apache-2.0
//
// Runs a function on the ranks of a dry run, and keeps what they did.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/communicator.hpp>
#include <plateau/dry_run/memory_peaks.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/recorder.hpp>
#include <plateau/error.hpp>
#include <plateau/run_ranks.hpp>

#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// What ranks of a dry run left behind.
struct dry_ranks {
  std::vector<std::shared_ptr<dry::recorder>> recorders; // by rank
  std::vector<int> stands_for;                           // by rank: who did its work; itself, if not folded
  std::vector<std::optional<failure>> left_with;         // by rank: nothing if it returned
  std::optional<failure> cause;                          // of the group's failure, if it failed

  const memory_peaks& peaks(int rank, memory_kind pool = memory_kind::device) const {
    return recorders[static_cast<std::size_t>(stands_for[static_cast<std::size_t>(rank)])]->peaks(pool);
  }
  // The sentences of the order check, of all ranks that did their own work.
  std::vector<std::string> findings() const {
    std::vector<std::string> all;
    for (std::size_t r = 0; r < recorders.size(); ++r)
      if (stands_for[r] == static_cast<int>(r))
        for (const dry::finding& f : recorders[r]->findings()) all.push_back(recorders[r]->text_of(f));
    return all;
  }
};

// Tables of the peaks, one for all ranks that have the same; of both pools where anything was pinned.
inline void write_peaks(std::ostream& out, const dry_ranks& ran) {
  for (const memory_kind pool : {memory_kind::device, memory_kind::pinned_host}) {
    const int ranks = static_cast<int>(ran.recorders.size());
    for (int r = 0; r < ranks; ++r) {
      const memory_peaks& mine = ran.peaks(r, pool);
      const auto same = [&](int other) { return ran.peaks(other, pool) == mine; };
      bool known = mine.total.bytes == 0;
      for (int earlier = 0; earlier < r; ++earlier) known = known || same(earlier);
      if (known) continue;
      std::string who = "rank";
      for (int other = r; other < ranks; ++other)
        if (same(other)) who += (other == r ? " " : ", ") + std::to_string(other);
      write_peaks(out, who + (pool == memory_kind::device ? ", device" : ", pinned"), mine);
    }
  }
}

// Runs f(comm) on `ranks` threads, each with its dry_communicator&; f makes its backend from it:
// `dry_run<host_backend> backend(comm)`. Returns when all have ended, however they ended.
template <class F>
dry_ranks run_dry(int ranks, F&& f, const dry_options& options = {}, thread_options threads = {}) {
  std::vector<dry_communicator> group = dry_communicator::make_group(ranks, options, threads);
  dry_ranks result;
  for (const dry_communicator& comm : group) result.recorders.push_back(comm.recorder());
  result.cause = detail::run_group(group, f, result.left_with);
  result.stands_for = group.front().stands_for();
  if (result.stands_for.empty()) {
    result.stands_for.resize(group.size());
    std::iota(result.stands_for.begin(), result.stands_for.end(), 0);
  }
  return result;
}

} // namespace plateau::inline v0
