// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/backends.md for GPUs, compiled and run on the stand-in: a trainer that has streams and
// communicators of its own.
#include "nccl_fixture.hpp"

#include <plateau/close_step.hpp>
#include <plateau/cuda/thread_communicator.hpp>
#include <plateau/kernels.hpp>

namespace pl = plateau;
using nccl_ranks::eight_devices;
using pl::in;
using pl::inout;
using pl::out;

namespace {
struct moved_tile {
  pl::device_buffer<float, pl::cuda_backend> sent, received;
  moved_tile(pl::cuda_backend& backend, pl::index_t n)
      : sent(backend.device(), n, pl::tag::other), received(backend.device(), n, pl::tag::other) {}
};
float first_of(pl::cuda_backend& backend, pl::cuda_backend::stream& s, pl::view<float> v) {
  pl::pinned_buffer<float, pl::cuda_backend> h(backend.pinned(), 1, pl::tag::other);
  backend.copy(s, in(v.sub(0, 1)), out(h.all()));
  backend.wait(backend.record(s));
  return *h.data();
}
// What every rank does below: its number goes to the next rank.
template <class Communicator>
float pass_on(pl::cuda_backend& backend, Communicator& comm, pl::cuda_backend::stream& stream) {
  const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
  moved_tile x(backend, 1000);
  backend.launch(stream, pl::elements{1000}, pl::fill<float>{static_cast<float>(comm.rank())},
                 out(x.sent.all()));
  comm.exchange(stream, {send_to(next, x.sent.all())}, {receive_from(before, x.received.all())}, "ring");
  pl::close_step(backend, comm, stream);
  return first_of(backend, stream, x.received.all());
}
template <class Communicator> void passed_on(pl::cuda_backend& backend, Communicator& comm) {
  auto stream = backend.make_stream("main");
  contract::require(pass_on(backend, comm, stream) ==
                        static_cast<float>((comm.rank() + comm.size() - 1) % comm.size()),
                    "the number of the rank before comes");
}
} // namespace

TEST_CASE("documentation: a stream of one's own") {
  cudaStream_t theirs = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking) == cudaSuccess);
  {
    const int device = 0;
    pl::cuda_backend backend("rank 0", device);
    auto stream = backend.make_stream(pl::cuda_stream_ref{theirs}, "trainer");

    pl::device_buffer<float, pl::cuda_backend> x(backend.device(), 100, pl::tag::other);
    backend.launch(stream, pl::elements{100}, pl::fill<float>{7}, out(x.all()));
    CHECK(first_of(backend, stream, x.all()) == 7);
  }
  CHECK(cudaStreamSynchronize(theirs) == cudaSuccess); // still there
  CHECK(cudaStreamDestroy(theirs) == cudaSuccess);
}

TEST_CASE("documentation: several ranks on one GPU") {
  pl::run_ranks<pl::cuda_thread_communicator>(4, [](pl::cuda_thread_communicator& comm) {
    pl::cuda_backend backend("a rank");
    passed_on(backend, comm);
  });
}

TEST_CASE("documentation: NCCL over a communicator that is there, and over a function") {
  const eight_devices with;
  nccl_ranks::nobody_failed(nccl_ranks::on_threads(2, [](pl::thread_communicator& host) {
    pl::cuda_backend backend("a rank", host.rank());
    pl::nccl_communicator comm{host}; // over host: an mpi_communicator, or threads with a GPU each
    passed_on(backend, comm);
  }));
  nccl_ranks::nobody_failed(nccl_ranks::on_threads(2, [](pl::thread_communicator& mine) {
    const int my_rank = mine.rank(), ranks = mine.size();
    pl::cuda_backend backend("a rank", my_rank);
    pl::nccl_callback host;
    host.rank = my_rank;
    host.size = ranks;
    host.all_gather = [&](std::span<const std::int64_t> values, std::span<std::int64_t> all) {
      mine.host_exchange(values, all); // whatever connects your ranks already
    };
    pl::nccl_communicator comm{host};
    passed_on(backend, comm);
  }));
}

TEST_CASE("documentation: an ncclComm_t of one's own") {
  const eight_devices with;
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  nccl_ranks::nobody_failed(nccl_ranks::on_threads(2, [&](pl::thread_communicator& host) {
    ncclComm_t theirs = nullptr;
    contract::require(ncclCommInitRank(&theirs, 2, id, host.rank()) == ncclSuccess, "theirs is made");
    {
      pl::cuda_backend backend("a rank", host.rank());
      pl::nccl_communicator comm{host, theirs}; // never destroyed by it
      passed_on(backend, comm);
    }
    contract::require(ncclCommDestroy(theirs) == ncclSuccess, "theirs is still there");
  }));
}
