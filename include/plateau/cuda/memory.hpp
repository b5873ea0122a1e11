// SPDX-License-Identifier: Apache-2.0
//
// Device and pinned memory, one plain allocation of the runtime for each request: workspaces and slots are
// allocated once, so there is nothing to pool. A request that fails says what was asked for and what is free,
// and leaves no error behind in the runtime.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>
#include <plateau/tag.hpp>
#include <plateau/view.hpp>

#include <cuda_runtime.h>

#include <string>

namespace plateau::inline v0::cudart {

namespace detail {
[[noreturn]] inline void no_memory(cudaError_t status, const char* call, const char* what,
                                   std::size_t bytes) {
  static_cast<void>(cudaGetLastError());
  std::string text = std::string("plateau: no ") + std::to_string(bytes) + " bytes of " + what + " memory";
  std::size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess)
    text += " (the device has " + std::to_string(free_bytes) + " of " + std::to_string(total) + " free)";
  else
    static_cast<void>(cudaGetLastError());
  throw backend_error(text + ": " + call + ": " + error_text(status));
}
// cudaMalloc aligns to 256 bytes at least, as the programming guide says; cudaMallocHost gives whole pages.
inline void check_alignment(std::size_t alignment) {
  if (alignment > part_alignment)
    throw config_error("plateau: CUDA memory is aligned to " + std::to_string(part_alignment) +
                       " bytes, not to " + std::to_string(alignment));
}
} // namespace detail

// Memory of the device that is current when it is allocated. Freeing waits until the device is idle, so it
// belongs outside of a program's steps.
struct device_resource {
  using space = device_space;

  void* allocate(std::size_t bytes, std::size_t alignment, tag) {
    detail::check_alignment(alignment);
    if (bytes == 0) return nullptr;
    void* p = nullptr;
    if (const cudaError_t status = cudaMalloc(&p, bytes); status != cudaSuccess)
      detail::no_memory(status, "cudaMalloc", space::name, bytes);
    return p;
  }
  void deallocate(void* p, std::size_t, std::size_t, tag) noexcept {
    if (p != nullptr) forgive(cudaFree(p));
  }
};

// Host memory that copies reach without a detour, locked into RAM.
struct pinned_resource {
  using space = host_space;

  void* allocate(std::size_t bytes, std::size_t alignment, tag) {
    detail::check_alignment(alignment);
    if (bytes == 0) return nullptr;
    void* p = nullptr;
    if (const cudaError_t status = cudaMallocHost(&p, bytes); status != cudaSuccess)
      detail::no_memory(status, "cudaMallocHost", "pinned host", bytes);
    return p;
  }
  void deallocate(void* p, std::size_t, std::size_t, tag) noexcept {
    if (p != nullptr) forgive(cudaFreeHost(p));
  }
};

static_assert(memory_resource<device_resource> && memory_resource<pinned_resource>);

} // namespace plateau::inline v0::cudart
