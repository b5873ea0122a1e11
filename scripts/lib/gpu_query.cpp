// SPDX-License-Identifier: Apache-2.0
//
// What scripts/gpu-check must know of a GPU before anything is built: one line "key value" each. Ends with 3,
// and one sentence on standard error, where there is none that CUDA can use.
#include <cuda_runtime_api.h>

#include <cstdio>

namespace {

int without_device(const char* why) {
  std::fprintf(stderr, "no GPU that CUDA can use: %s\n", why);
  return 3;
}

} // namespace

int main() {
  int driver = 0, runtime = 0, devices = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return without_device("no NVIDIA driver is loaded");
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted == cudaErrorInsufficientDriver) {
    std::fprintf(stderr,
                 "no GPU that CUDA can use: the driver is for CUDA %d.%d, the toolkit here is CUDA %d.%d; "
                 "install a newer driver\n",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return 3;
  }
  if (counted != cudaSuccess) return without_device(cudaGetErrorString(counted));
  if (devices == 0) return without_device("the driver sees none");
  cudaDeviceProp first{};
  const cudaError_t asked = cudaGetDeviceProperties(&first, 0);
  if (asked != cudaSuccess) return without_device(cudaGetErrorString(asked));
  bool alike = true;
  for (int d = 1; d < devices; ++d) {
    cudaDeviceProp other{};
    if (cudaGetDeviceProperties(&other, d) == cudaSuccess)
      alike = alike && other.major == first.major && other.minor == first.minor;
  }
  std::printf("device %s\n", first.name);
  std::printf("devices %d\n", devices);
  std::printf("alike %d\n", alike ? 1 : 0);
  std::printf("architecture %d%d\n", first.major, first.minor);
  std::printf("memory_bytes %zu\n", first.totalGlobalMem);
  std::printf("driver %d.%d\n", driver / 1000, driver % 1000 / 10);
  std::printf("runtime %d.%d\n", runtime / 1000, runtime % 1000 / 10);
  return 0;
}
