// SPDX-License-Identifier: Apache-2.0
//
// The main function of tests between processes. One process tells how it went; the others only what failed.
#define DOCTEST_CONFIG_IMPLEMENT
#include "mpi_rig.hpp"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  try {
    const plateau::mpi_session session(argc, argv);
    doctest::Context context(argc, argv);
    const int processes = mpi_rig::processes();
    for (int more = processes + 1; more <= 6; ++more)
      context.addFilter("test-case-exclude", ("mpi on " + std::to_string(more) + " ranks*").c_str());
    if (mpi_rig::process() == 0)
      std::printf("%d processes; tests that need more are skipped\n", processes);
    else
      context.setOption("minimal", true);
    return context.run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
