// SPDX-License-Identifier: Apache-2.0
//
// The main function of the tests that need a GPU. Where there is none the program says so and returns 77,
// which ctest counts as skipped, never as passed; with PLATEAU_NEED_GPU in the environment that is a failure.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  int devices = 0;
  const cudaError_t answer = cudaGetDeviceCount(&devices);
  if (answer != cudaSuccess || devices == 0) {
    std::printf("no GPU to test on: %s\n", answer != cudaSuccess ? cudaGetErrorString(answer) : "no device");
    return std::getenv("PLATEAU_NEED_GPU") != nullptr ? 1 : 77;
  }
  return doctest::Context(count, arguments).run();
}
