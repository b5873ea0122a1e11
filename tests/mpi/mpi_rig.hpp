// SPDX-License-Identifier: Apache-2.0
//
// Tests between processes: every process of the job runs the same test cases in the same order, and all see
// what each rank's function left with, so that they assert the same things. Test cases are named by the ranks
// that they need: "mpi on 4 ranks: ..." is left out where the job has fewer; "mpi on up to 4 ranks: ..." runs
// as far as it can, and says where it stopped.
#pragma once

#include <plateau/mpi.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mpi_rig {

namespace pl = plateau;
using outcomes = std::vector<std::optional<pl::failure>>;

inline int process() {
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int processes() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// The first `ranks` processes; MPI_COMM_NULL on the others. Made once for each number, by all.
inline MPI_Comm first_processes(int ranks) {
  static std::map<int, MPI_Comm> made;
  const auto it = made.find(ranks);
  if (it != made.end()) return it->second;
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, process() < ranks ? 0 : MPI_UNDEFINED, 0, &some);
  return made.emplace(ranks, some).first->second;
}

// What the first `ranks` processes left with, on all.
inline outcomes gather(int ranks, const std::optional<pl::failure>& mine) {
  struct flat {
    int some, kind, rank;
    std::uint64_t sequence;
    char operation[256], text[4096];
  };
  static_assert(std::is_trivially_copyable_v<flat>);
  flat own{};
  if (mine) {
    own.some = 1;
    own.kind = static_cast<int>(mine->what);
    own.rank = mine->failed_rank;
    own.sequence = mine->sequence;
    std::strncpy(own.operation, mine->operation.c_str(), sizeof own.operation - 1);
    std::strncpy(own.text, mine->text.c_str(), sizeof own.text - 1);
  }
  std::vector<flat> all(static_cast<std::size_t>(processes()));
  MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD);
  outcomes result(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < result.size(); ++r)
    if (all[r].some != 0)
      result[r] = pl::failure{static_cast<pl::failure::kind>(all[r].kind), all[r].text, all[r].rank,
                              all[r].operation, all[r].sequence};
  return result;
}

struct too_few_processes {
  int wanted;
};

// Runs f(comm) on the first `ranks` processes.
template <class F> outcomes run(int ranks, F f, const pl::mpi_options& options) {
  if (ranks > processes()) throw too_few_processes{ranks};
  const MPI_Comm some = first_processes(ranks);
  pl::mpi::rank_end end;
  if (some != MPI_COMM_NULL) {
    try {
      pl::mpi_communicator comm{some, options};
      end = pl::mpi::run_rank(comm, f);
    } catch (const pl::collective_error&) { // a rank may fail before another one's is made
      end.mine = pl::failure::current();
    }
  }
  return gather(ranks, end.mine);
}

// The fixture of the contract suites.
struct ranks_of_mpi {
  using backend = pl::host_backend;
  template <class F> static auto run(int ranks, F f, std::chrono::milliseconds deadline) {
    return mpi_rig::run(ranks, f, pl::mpi_options{deadline});
  }
};

// The fixture of operators' checks: runs this process' rank, and none may fail.
struct on_processes {
  using backend = pl::host_backend;
  using communicator = pl::mpi_communicator;
  static constexpr bool has_data = true;

  template <class F> void run(int ranks, F f) const {
    const auto ends = mpi_rig::run(
        ranks,
        [&](pl::mpi_communicator& comm) {
          pl::host_backend of_rank;
          f(comm, of_rank);
        },
        pl::mpi_options{});
    for (const auto& o : ends) {
      if (o) MESSAGE(o->text);
      CHECK_FALSE(o.has_value());
    }
  }
};

// For test cases that take what processes there are.
template <class F> void as_far_as_possible(F test) {
  try {
    test();
  } catch (const too_few_processes& e) {
    if (process() == 0)
      MESSAGE("not run with " << e.wanted << " ranks: there are " << processes() << " processes");
  }
}

} // namespace mpi_rig
