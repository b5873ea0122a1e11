// SPDX-License-Identifier: Apache-2.0
//
// Programs that use MPI in the wrong order, or ask too little of it: each prints the sentence that it gets.
// The order is the argument; mpi_session itself, which a program can have only once, is tested here too.
#include <plateau/mpi.hpp>

#include <cstdio>
#include <string>

namespace {
template <class F> void print_refusal(F f) {
  try {
    f();
    std::printf("not refused\n");
  } catch (const plateau::config_error& e) {
    std::printf("refused: %s\n", e.what());
  }
}
int finalized() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes;
}
} // namespace

int main(int argc, char** argv) {
  const std::string order = argc > 1 ? argv[1] : "";
  const auto communicator = [] { plateau::mpi_communicator comm{MPI_COMM_SELF}; };
  if (order == "none") {
    print_refusal(communicator);
  } else if (order == "funneled") {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    print_refusal([] { plateau::mpi_session session; });
    print_refusal(communicator);
    std::printf("finalized by it: %d\n", finalized()); // it was not its own
    MPI_Finalize();
  } else if (order == "twice") {
    plateau::run_mpi_ranks([](auto& comm) { comm.close_step(); });
    std::printf("finalized by it: %d\n", finalized());
    print_refusal([] { plateau::run_mpi_ranks([](auto&) {}); });
  } else if (order == "users") {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    for (int i = 0; i < 2; ++i) plateau::run_mpi_ranks([](auto& comm) { comm.close_step(); });
    std::printf("finalized by it: %d\n", finalized());
    MPI_Finalize();
  }
}
