// SPDX-License-Identifier: Apache-2.0
//
// Plateau on NVIDIA GPUs: cuda_backend, cuda_thread_communicator, and cuda_scratch, the scratch model of dry
// runs. Needs the CUDA toolkit (12.4 to 13.x): CMake component `cuda`, target plateau::cuda.
#pragma once

#include <plateau/cuda/backend.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/cuda/thread_communicator.hpp>
