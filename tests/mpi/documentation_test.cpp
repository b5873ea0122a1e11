// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/backends.md for processes.
#include "mpi_rig.hpp"

#include <plateau/close_step.hpp>

#include <span>
#include <stdexcept>
#include <string>

namespace pl = plateau;

namespace {
std::int64_t sum_of_ranks(pl::mpi_communicator& comm) {
  const std::int64_t mine[] = {comm.rank()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.host_exchange(mine, all, "ranks");
  std::int64_t sum = 0;
  for (const std::int64_t r : all) sum += r;
  return sum;
}
std::int64_t expected() { return std::int64_t{mpi_rig::processes()} * (mpi_rig::processes() - 1) / 2; }
} // namespace

TEST_CASE("documentation: a function on all processes") {
  std::int64_t sum = -1;
  pl::run_mpi_ranks([&](pl::mpi_communicator& comm) {
    pl::host_backend backend;
    auto stream = backend.make_stream("main");
    sum = sum_of_ranks(comm);
    pl::close_step(backend, comm, stream);
  });
  CHECK(sum == expected());
}

TEST_CASE("documentation: a communicator of one's own") {
  MPI_Comm mine = MPI_COMM_WORLD;
  {
    pl::mpi_options options;
    options.deadline = std::chrono::minutes(2);
    pl::mpi_communicator comm{mine, options}; // a duplicate: mine stays as it was

    CHECK(sum_of_ranks(comm) == expected());
  }
  int size = 0;
  CHECK(MPI_Comm_size(mine, &size) == MPI_SUCCESS);
}

TEST_CASE("documentation: several communicators at once: whoever fails tells each") {
  std::string text;
  try {
    pl::mpi_communicator one{MPI_COMM_WORLD}, other{MPI_COMM_WORLD};
    try {
      if (one.rank() == 0) throw std::runtime_error("label 7 is out of range");
      one.close_step();
    } catch (...) {
      const pl::failure why = pl::failure::current();
      for (auto* comm : {&one, &other}) comm->abort(why);
      throw;
    }
  } catch (const std::exception& e) {
    text = e.what();
  }
  CHECK(text.find("label 7 is out of range") != std::string::npos);
}
