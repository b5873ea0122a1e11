// SPDX-License-Identifier: Apache-2.0
//
// NCCL on the GPUs that are here, a rank on each, with threads as host channel: one rank, which is all that
// one GPU can hold, and all of them. Rings of every length, long lists, sums, groups, and the closing of
// steps.
#include <plateau/access.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/cuda.hpp>
#include <plateau/nccl.hpp>
#include <plateau/resource.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include "support/device_values.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime.h>

namespace pl = plateau;
using pl::index_t;
using backend_type = pl::cuda_backend;

namespace {

int gpus() {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  return count;
}

float value_of(int rank, index_t i) {
  return static_cast<float>((i * 31 + 57 * rank) % 4096) + static_cast<float>(rank) * 8192;
}

// f(backend, communicator) on `ranks` threads, rank r on GPU r.
template <class F> void on_gpus(int ranks, F f) {
  pl::run_ranks<pl::thread_communicator>(ranks, [&](pl::thread_communicator& threads) {
    const std::string owner = "rank " + std::to_string(threads.rank());
    backend_type backend(owner.c_str(), threads.rank());
    pl::nccl_communicator comm{threads};
    f(backend, comm);
  });
}

// Each rank's values to the next, in pieces.
template <class Communicator>
void check_ring(backend_type& backend, Communicator& comm, index_t n, index_t pieces) {
  const int next = (comm.rank() + 1) % comm.size(), last = (comm.rank() + comm.size() - 1) % comm.size();
  const pl::device_buffer<float, backend_type> mine(backend.device(), n, pl::tag::other),
      theirs(backend.device(), n, pl::tag::other);
  auto stream = backend.make_stream("ring");
  support::to_device(backend, stream, mine.all(), [&](index_t i) { return value_of(comm.rank(), i); });
  support::to_device(backend, stream, theirs.all(), [](index_t) { return -1.0F; });
  std::vector<pl::send_op> sends;
  std::vector<pl::receive_op> receives;
  for (index_t p = 0; p < pieces; ++p) {
    const index_t first = n * p / pieces, end = n * (p + 1) / pieces;
    sends.push_back(pl::send_to(next, mine.all().sub(first, end - first)));
    receives.push_back(pl::receive_from(last, theirs.all().sub(first, end - first)));
  }
  comm.exchange(stream, sends, receives, "ring");
  const std::vector<float> got = support::from_device(backend, stream, theirs.all());
  index_t wrong = 0;
  for (index_t i = 0; i < n; ++i) wrong += got[static_cast<std::size_t>(i)] == value_of(last, i) ? 0 : 1;
  CHECK(wrong == 0);
}

template <class Communicator> void check_sum(backend_type& backend, Communicator& comm, index_t n) {
  const pl::device_buffer<float, backend_type> values(backend.device(), n, pl::tag::other);
  const pl::device_buffer<unsigned char, backend_type> scratch(
      backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(comm.size())), pl::tag::other);
  auto stream = backend.make_stream("sum");
  support::to_device(backend, stream, values.all(), [&](index_t i) { return value_of(comm.rank(), i); });
  pl::all_reduce(backend, comm, stream, pl::inout(values.all()), scratch.all());
  const std::vector<float> got = support::from_device(backend, stream, values.all());
  index_t wrong = 0;
  for (index_t i = 0; i < n; ++i) {
    float sum = value_of(0, i);
    for (int r = 1; r < comm.size(); ++r) sum += value_of(r, i);
    wrong += got[static_cast<std::size_t>(i)] == sum ? 0 : 1;
  }
  CHECK(wrong == 0);
  pl::close_step(backend, comm, stream);
}

void check_all(int ranks) {
  CAPTURE(ranks);
  on_gpus(ranks, [&](backend_type& backend, pl::nccl_communicator& comm) {
    for (const index_t n : {1, 7, 4096, 1'000'003}) check_ring(backend, comm, n, 1);
    check_ring(backend, comm, 100'000, 257);
    check_ring(backend, comm, 3, 10); // most pieces are empty
    check_sum(backend, comm, 100'001);
    auto pairs = comm.split(comm.rank() / 2, comm.rank());
    CHECK(pairs.size() == (comm.rank() / 2 * 2 + 1 < ranks ? 2 : 1));
    check_sum(backend, pairs, 1003);
    const std::int64_t mine[] = {comm.rank(), 100 - comm.rank()};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(ranks));
    comm.host_exchange(mine, all, "numbers");
    for (int r = 0; r < ranks; ++r) CHECK(all[2 * static_cast<std::size_t>(r) + 1] == 100 - r);
  });
}

} // namespace

TEST_CASE("NCCL on one GPU") { check_all(1); }
TEST_CASE("NCCL on all GPUs that are here") {
  MESSAGE("GPUs: ", gpus());
  check_all(gpus());
}
TEST_CASE("a rank that throws ends the others with its cause") {
  const auto ended =
      pl::run_ranks_collecting<pl::thread_communicator>(gpus(), [](pl::thread_communicator& threads) {
        backend_type backend("", threads.rank());
        pl::nccl_communicator comm{threads};
        check_ring(backend, comm, 1000, 1);
        if (threads.rank() == 0) throw pl::config_error("nothing to be done on rank 0");
        check_ring(backend, comm, 1000, 1);
        check_ring(backend, comm, 1000, 1);
      });
  for (const auto& each : ended) {
    REQUIRE(each.has_value());
    CHECK(each->text.find("nothing to be done on rank 0") != std::string::npos);
  }
}
