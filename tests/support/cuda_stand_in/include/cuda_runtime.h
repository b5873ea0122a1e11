// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: what nvcc adds to C++, for g++ and clang++. Keywords of device code become nothing; a variable of
// a block is one of the thread that runs all of the block's fibers; the one way to launch a kernel is
// cudaLaunchKernelEx. Given with -include, as nvcc includes it by itself, and with -D__CUDACC__.
#pragma once

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ thread_local

#include <cuda_runtime_api.h>
#include <cuda_stand_in/launch.hpp>

// The C++ forms with a type, as the real header has them.
template <class T> inline cudaError_t cudaMalloc(T** p, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <class T>
inline cudaError_t cudaMallocHost(T** p, std::size_t bytes, unsigned flags = cudaHostAllocDefault) {
  return flags == cudaHostAllocDefault ? cudaMallocHost(reinterpret_cast<void**>(p), bytes)
                                       : cuda_stand_in::keep(cudaErrorNotSupported);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(P...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
