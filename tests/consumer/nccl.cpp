// SPDX-License-Identifier: Apache-2.0
//
// The smallest program that uses NCCL: a group of one rank, over a host channel of its own. No file of it
// needs nvcc. It is compiled and linked; without a GPU it can only say that there is none.
#include <plateau/nccl.hpp>
#include <plateau/plateau.hpp>

#include <algorithm>
#include <cstdio>

namespace pl = plateau;

int main() try {
  pl::cuda_backend backend;
  pl::nccl_callback alone;
  alone.rank = 0;
  alone.size = 1;
  alone.all_gather = [](std::span<const std::int64_t> mine, std::span<std::int64_t> all) {
    std::copy(mine.begin(), mine.end(), all.begin());
  };
  pl::nccl_communicator comm{alone};
  auto stream = backend.make_stream("exchange");
  pl::close_step(backend, comm, stream);
  std::printf("rank %d of %d\n", comm.rank(), comm.size());
} catch (const pl::error& e) {
  std::printf("%s\n", e.what());
  return 1;
}
