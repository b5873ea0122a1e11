// SPDX-License-Identifier: Apache-2.0
//
// What the thread sanitizer sees of two streams: kernels that write the same memory without an event between
// them are a race, and with one they are none. Without the sanitizer only the order is looked at.
#include "stand_in_tools.hpp"

#include <atomic>

using namespace stand_in;

namespace {

std::atomic<int> races{0};

__global__ void write_all(int* p, int v) { p[threadIdx.x] = v; }

void follow(const stream& later, const stream& earlier, const event& e) {
  REQUIRE(cudaEventRecord(e.e, earlier.s) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(later.s, e.e) == cudaSuccess);
}
// Writes from two streams in turn; how many races were seen.
int races_of(bool ordered, int rounds) {
  const int before = races.load();
  const stream a, b;
  const event e;
  const device_array<int> x(32);
  const cudaLaunchConfig_t in_a = launch_of(1, 32, a), in_b = launch_of(1, 32, b);
  for (int i = 0; i < rounds && races.load() == before; ++i) {
    REQUIRE(cudaLaunchKernelEx(&in_a, write_all, x.p, 2 * i) == cudaSuccess);
    if (ordered) follow(b, a, e);
    REQUIRE(cudaLaunchKernelEx(&in_b, write_all, x.p, 2 * i + 1) == cudaSuccess);
    if (ordered) follow(a, b, e);
  }
  a.finish();
  b.finish();
  if (ordered) CHECK(x.download(b)[31] == 2 * rounds - 1);
  return races.load() - before;
}

} // namespace

#if defined(CUDA_STAND_IN_TSAN)
extern "C" {
void __tsan_on_report(void*) { ++races; }
const char* __tsan_default_options() { return "exitcode=0"; }
}
#endif

TEST_CASE("kernels of two streams with events between them are in order") { CHECK(races_of(true, 100) == 0); }

TEST_CASE("without an event the thread sanitizer tells of it" * doctest::skip(!sees_races)) {
  int seen = 0;
  for (int attempt = 0; attempt < 20 && seen == 0; ++attempt) seen = races_of(false, 100);
  CHECK(seen > 0);
}
