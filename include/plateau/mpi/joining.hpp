// SPDX-License-Identifier: Apache-2.0
//
// What processes tell one another when they make a communicator: which Plateau they were built with, and
// which MPI they run. Versions that differ exchange bytes that each reads in its own way, so they are
// refused, on all ranks, with both in words.
#pragma once

#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/digest.hpp>
#include <plateau/mpi/check.hpp>
#include <plateau/vote.hpp>

#include <memory>
#include <span>
#include <string>

namespace plateau::inline v0::mpi {

// A world's ranks as vote() takes a communicator. Host thread.
template <class World> struct joining_ranks {
  std::shared_ptr<World> over;
  int me;
  plateau::counters done{};

  int rank() const { return me; }
  int size() const { return over->size(); }
  const plateau::counters& counters() const { return done; }
  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all, const char* what) {
    over->host_exchange(me, done.host_exchanges++, mine, all, what);
  }
};

// "Plateau 0.1.0, Open MPI v4.1.4, ..."
inline std::string versions_here() {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check(MPI_Get_library_version(library, &length), "MPI_Get_library_version");
  return "Plateau " + std::to_string(PLATEAU_VERSION_MAJOR) + "." + std::to_string(PLATEAU_VERSION_MINOR) +
         "." + std::to_string(PLATEAU_VERSION_PATCH) + ", " + library;
}

// Collective. Throws collective_error on all ranks unless all have the same.
template <class Ranks> void agree_on_versions(Ranks& ranks, const std::string& versions) {
  vote(ranks, digest{}.add(versions), nullptr, "mpi_communicator", versions);
}

} // namespace plateau::inline v0::mpi
