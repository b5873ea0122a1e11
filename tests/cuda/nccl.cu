// SPDX-License-Identifier: Apache-2.0
//
// nccl_communicator under nvcc, compiled only: it models the concept on streams of the CUDA backend, over
// every kind of host channel, and behind any_communicator.
#include <plateau/cuda.hpp>
#include <plateau/nccl.hpp>

#include <plateau/any_communicator.hpp>
#include <plateau/checks.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>
#include <plateau/vote.hpp>

#include <type_traits>
#include <vector>

namespace pl = plateau;
using comm_type = pl::nccl_communicator;
using any_type = pl::any_communicator<pl::cuda_backend::stream>;

static_assert(pl::communicator<comm_type, pl::cuda_backend>);
static_assert(pl::check_communicator<comm_type, pl::cuda_backend>());
static_assert(pl::communicator<any_type, pl::cuda_backend>);
static_assert(!pl::communicator<comm_type, pl::host_backend>, "its exchanges run on streams of CUDA");
static_assert(std::is_nothrow_move_constructible_v<comm_type> && !std::is_copy_constructible_v<comm_type>);

static_assert(std::is_constructible_v<comm_type, pl::thread_communicator&>);
static_assert(std::is_constructible_v<comm_type, pl::thread_communicator&, pl::nccl_options>);
static_assert(std::is_constructible_v<comm_type, pl::thread_communicator&, ncclComm_t>);
static_assert(std::is_constructible_v<comm_type, pl::thread_communicator&, ncclComm_t, pl::nccl_options>);
static_assert(std::is_constructible_v<comm_type, pl::nccl_callback>);
static_assert(std::is_constructible_v<comm_type, pl::nccl_callback, pl::nccl_options>);
static_assert(std::is_constructible_v<comm_type, pl::nccl_callback, ncclComm_t, pl::nccl_options>);
static_assert(!std::is_constructible_v<comm_type, comm_type&>, "not its own host channel");
static_assert(!std::is_constructible_v<comm_type, pl::thread_communicator>, "the host channel outlives it");

namespace {
void uses(pl::cuda_backend& gpu, comm_type& comm, pl::device_buffer<float, pl::cuda_backend>& data,
          pl::scratch_view scratch) {
  auto s = gpu.make_stream("s");
  comm.exchange(s, {send_to(0, data.all())}, {receive_from(0, data.all())}, "to itself");
  pl::all_reduce(gpu, comm, s, inout(data.all()), scratch);
  auto part = comm.split(0, comm.rank());
  pl::vote(part, 0, nullptr, "nccl.cu");
  pl::close_step(gpu, part, s);
  any_type any(&comm);
  any.exchange(s, {send_to(0, data.all())}, {receive_from(0, data.all())});
}
} // namespace

// Instantiated, never run.
using uses_type = decltype(&uses);
extern const uses_type keep_nccl_uses;
const uses_type keep_nccl_uses = &uses;
