// SPDX-License-Identifier: Apache-2.0
//
// The smallest program whose ranks are processes: each sends its number to the next one.
#include <plateau/mpi.hpp>
#include <plateau/plateau.hpp>

#include <cstdio>

namespace pl = plateau;

int main(int argc, char** argv) {
  const pl::mpi_session session(argc, argv);
  int size = 0;
  double got = -1;
  pl::run_mpi_ranks([&](pl::mpi_communicator& comm) {
    size = comm.size();
    pl::host_backend backend;
    pl::host_backend::stream stream = backend.make_stream("exchange");
    double mine = comm.rank();
    const pl::view<double> out{&mine, 1}, in{&got, 1};
    comm.exchange(stream, {pl::send_to((comm.rank() + 1) % size, out)},
                  {pl::receive_from((comm.rank() + size - 1) % size, in)});
    pl::close_step(backend, comm, stream);
    got -= (comm.rank() + size - 1) % size;
  });
  std::printf("%d ranks, off by %g\n", size, got);
  return size == 2 && got == 0 ? 0 : 1;
}
