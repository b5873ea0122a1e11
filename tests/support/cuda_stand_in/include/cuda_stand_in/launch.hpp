// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: what kernels see, and cudaLaunchKernelEx. A launch copies the arguments, converted to the
// kernel's own parameter types; device addresses among them are translated (memory.hpp) when the kernel runs.
#pragma once

#include <cuda_stand_in/block.hpp>
#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/fault.hpp>
#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/stream.hpp>

#include <driver_types.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

// Barriers. All members of a block, or of the named lanes of a warp, come to the same one.
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  cuda_stand_in::block_runner::mine().barrier(0, file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  cuda_stand_in::block_runner::mine().barrier(mask, file, line);
}

namespace cuda_stand_in {

inline constexpr std::size_t most_argument_bytes = 32764;

inline cudaError_t check_launch(const cudaLaunchConfig_t& c, std::size_t argument_bytes) {
  const dim3 g = c.gridDim, b = c.blockDim;
  const bool fits = g.x >= 1 && g.y >= 1 && g.z >= 1 && g.x <= 2147483647u && g.y <= 65535 && g.z <= 65535 &&
                    b.x >= 1 && b.y >= 1 && b.z >= 1 && b.x <= 1024 && b.y <= 1024 && b.z <= 64 &&
                    std::size_t{b.x} * b.y * b.z <= 1024 && c.dynamicSmemBytes <= 49152;
  if (!fits) return cudaErrorInvalidConfiguration;
  if (c.numAttrs != 0) return cudaErrorNotSupported;
  return argument_bytes > most_argument_bytes ? cudaErrorInvalidValue : cudaSuccess;
}

} // namespace cuda_stand_in

template <class... P, class... A>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  using namespace cuda_stand_in;
  static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...),
                "a kernel's arguments are copied byte by byte");
  static_assert((!std::is_reference_v<P> && ...), "a kernel takes its arguments by value");
  using arguments = std::tuple<std::remove_const_t<P>...>;
  return call("cudaLaunchKernelEx", [&] {
    CUstream_st* const s = stream_of(config->stream);
    if (s == nullptr || s->device != current_device) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t e = check_launch(*config, sizeof(arguments)); e != cudaSuccess) return e;
    watch_faults();
    const dim3 g = config->gridDim, b = config->blockDim;
    s->append([s, kernel, g, b, given = arguments(std::forward<A>(args)...)]() mutable {
      translate_words(&given, sizeof given);
      struct work {
        void (*kernel)(P...);
        arguments& given;
      } one{kernel, given};
      std::string why;
      const bool well = block_runner::mine().run(
          [](void* p) { std::apply(static_cast<work*>(p)->kernel, static_cast<work*>(p)->given); }, &one,
          {g.x, g.y, g.z}, {b.x, b.y, b.z}, why);
      if (!well)
        fail_device(
            s->device,
            why.find("touches") != std::string::npos ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, why);
    });
    return cudaSuccess;
  });
}
