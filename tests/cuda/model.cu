// SPDX-License-Identifier: Apache-2.0
//
// The reference model on the CUDA backend, compiled only: every kernel of the model and of the library, every
// product and every exchange, for the device.
#define FMT_USE_CONSTEXPR 1 // fmt 9 does not compile under nvcc without it

#include "../../examples/moe/trainer.hpp"

#include <plateau/cuda.hpp>
#include <plateau/cuda/thread_communicator.hpp>

#include <plateau/checks.hpp>

namespace pl = plateau;

static_assert(pl::check_backend<pl::cuda_backend>());
static_assert(pl::check_communicator<pl::cuda_thread_communicator, pl::cuda_backend>());

template class moe::trainer<pl::cuda_backend, pl::cuda_thread_communicator, float>;
template class moe::trainer<pl::cuda_backend, pl::cuda_thread_communicator, pl::bfloat16>;
