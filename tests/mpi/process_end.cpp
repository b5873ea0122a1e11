// SPDX-License-Identifier: Apache-2.0
//
// A job of which one process ends in the way that the command line names, in the middle of its work. What the
// others do then is tested by run_process_end.cmake.
#include <plateau/mpi.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int victim = 1, last_step = 3;

void end(const std::string& way) {
  if (way == "throws") throw std::runtime_error("label 7 of token 3 is out of range");
  if (way == "exits") std::_Exit(0);
  if (way == "killed") static_cast<void>(std::raise(SIGKILL));
  if (way == "stopped") static_cast<void>(std::raise(SIGSTOP));
}

// Steps of a ring of `bytes` bytes each and a host exchange. The victim ends between two operations, or, when
// told "... meanwhile", while its exchange is underway.
void work(plateau::mpi_communicator& comm, const std::string& way, bool meanwhile) {
  const int me = comm.rank(), ranks = comm.size();
  const std::size_t bytes = std::size_t{1} << 22;
  std::vector<unsigned char> from(bytes), to(bytes);
  plateau::host_backend backend;
  auto stream = backend.make_stream("ring");
  for (int step = 0; step <= last_step; ++step) {
    const bool ends = me == victim && step == last_step;
    if (ends && !meanwhile) end(way);
    comm.exchange(stream, {{from.data(), bytes, (me + 1) % ranks}},
                  {{to.data(), bytes, (me + ranks - 1) % ranks}}, "ring");
    if (ends) end(way);
    backend.wait(backend.record(stream));
    comm.close_step();
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "", when = argc > 2 ? argv[2] : "";
  try {
    plateau::mpi_options options;
    options.deadline = std::chrono::milliseconds(2000);
    options.grace = std::chrono::milliseconds(1000);
    plateau::run_mpi_ranks([&](auto& comm) { work(comm, way, when == "meanwhile"); }, options);
  } catch (const plateau::error& e) {
    std::fprintf(stderr, "ended with: %s\n", e.what());
    return 3;
  }
}
