// SPDX-License-Identifier: Apache-2.0
//
// The stand-in's memory and copies.
#include "stand_in_tools.hpp"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include <sys/wait.h>

using namespace stand_in;

namespace {

std::vector<std::int32_t> counting(std::size_t n) {
  std::vector<std::int32_t> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}
// How a copy of this process ends that does f, and what it writes to its standard error.
template <class F> std::string end_of_a_process_that(F f, int& status) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], 2);
    ::signal(SIGSEGV, SIG_DFL);
    cs::watch_faults();
    f();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char piece[256];
  for (ssize_t n; (n = ::read(ends[0], piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(n));
  ::close(ends[0]);
  REQUIRE(::waitpid(child, &status, 0) == child);
  return text;
}
bool segmentation(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV; }

} // namespace

TEST_CASE("copies in every direction, and of rectangles") {
  stream s;
  const auto values = counting(24);
  device_array<std::int32_t> a(values, s), b(24);
  CHECK(reinterpret_cast<std::uintptr_t>(a.p) % 256 == 0);
  REQUIRE(cudaMemcpyAsync(b.p, a.p, 24 * 4, cudaMemcpyDefault, s.s) == cudaSuccess);
  CHECK(b.download(s) == values);
  // Rows 1 and 2 of 4 x 6 to rows 0 and 1 of 3 x 4, columns 1 to 3.
  device_array<std::int32_t> c(std::vector<std::int32_t>(12, -1), s);
  REQUIRE(cudaMemcpy2DAsync(c.p + 1, 16, a.p + 6 + 2, 24, 12, 2, cudaMemcpyDeviceToDevice, s.s) ==
          cudaSuccess);
  CHECK(c.download(s) == std::vector<std::int32_t>{-1, 8, 9, 10, -1, 14, 15, 16, -1, -1, -1, -1});
  REQUIRE(cudaMemsetAsync(c.p + 2, 0, 8, s.s) == cudaSuccess);
  CHECK(c.download(s) == std::vector<std::int32_t>{-1, 8, 0, 0, -1, 14, 15, 16, -1, -1, -1, -1});
  pinned_array<std::int32_t> p(24), q(24);
  REQUIRE(cudaMemcpyAsync(p.p, a.p, 96, cudaMemcpyDeviceToHost, s.s) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(q.p, p.p, 96, cudaMemcpyHostToHost, s.s) == cudaSuccess); // holds the host up
  CHECK(std::memcmp(q.p, values.data(), 96) == 0);
  CHECK(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDefault, s.s) == cudaSuccess);
}

TEST_CASE("new memory is full of a pattern that is neither 0 nor a number of use") {
  stream s;
  device_array<std::int32_t> a(100);
  for (const std::int32_t v : a.download(s)) REQUIRE(v == static_cast<std::int32_t>(0xfefefefe));
  pinned_array<unsigned char> p(7);
  for (int i = 0; i < 7; ++i) CHECK(p.p[i] == 0xfe);
}

TEST_CASE("ordinary memory is read before a copy returns, pinned memory when it runs") {
  cs::options o;
  o.delay_microseconds = 2000;
  with_settings back(o);
  stream s;
  const auto before = cs::pageable_copies().load();
  std::vector<std::int32_t> ordinary{1, 2};
  device_array<std::int32_t> a(2);
  gate g;
  REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(a.p, ordinary.data(), 8, cudaMemcpyHostToDevice, s.s) == cudaSuccess);
  ordinary = {7, 8};
  pinned_array<std::int32_t> pinned(2);
  pinned.p[0] = 3;
  device_array<std::int32_t> b(1);
  REQUIRE(cudaMemcpyAsync(b.p, pinned.p, 4, cudaMemcpyHostToDevice, s.s) == cudaSuccess);
  pinned.p[0] = 4;
  g.open = true;
  CHECK(a.download(s) == std::vector<std::int32_t>{1, 2});
  CHECK(b.download(s) == std::vector<std::int32_t>{4});
  CHECK(cs::pageable_copies().load() == before + 3);
}

TEST_CASE("copies that leave an allocation, or go the other way, are refused") {
  stream s;
  device_array<std::int32_t> a(8);
  pinned_array<std::int32_t> p(8);
  std::vector<std::int32_t> v(16);
  const auto refused = [&](cudaError_t e) {
    cudaGetLastError();
    return e == cudaErrorInvalidValue;
  };
  CHECK(refused(cudaMemcpyAsync(a.p, v.data(), 36, cudaMemcpyHostToDevice, s.s)));
  CHECK(refused(cudaMemcpyAsync(v.data(), a.p + 1, 32, cudaMemcpyDeviceToHost, s.s)));
  CHECK(refused(cudaMemcpyAsync(a.p - 1, v.data(), 8, cudaMemcpyHostToDevice, s.s)));
  CHECK(refused(cudaMemcpyAsync(a.p, p.p, 36, cudaMemcpyDefault, s.s)));
  CHECK(refused(cudaMemcpyAsync(a.p, p.p, 32, cudaMemcpyDeviceToHost, s.s)));
  CHECK(refused(cudaMemcpyAsync(v.data(), p.p, 32, cudaMemcpyDeviceToHost, s.s)));
  CHECK(refused(cudaMemcpyAsync(p.p, a.p, 32, cudaMemcpyDeviceToDevice, s.s)));
  CHECK(refused(cudaMemcpyAsync(a.p, nullptr, 32, cudaMemcpyDefault, s.s)));
  CHECK(refused(cudaMemsetAsync(a.p, 0, 33, s.s)));
  CHECK(refused(cudaMemsetAsync(v.data(), 0, 8, s.s)));
  CHECK(refused(cudaMemcpy2DAsync(a.p, 16, v.data(), 16, 12, 3, cudaMemcpyHostToDevice, s.s)));
  CHECK(cudaMemcpy2DAsync(a.p, 16, v.data(), 12, 12, 2, cudaMemcpyHostToDevice, s.s) == cudaSuccess);
  s.finish();
  CHECK(cudaMemcpy2DAsync(a.p, 8, v.data(), 16, 12, 2, cudaMemcpyHostToDevice, s.s) ==
        cudaErrorInvalidPitchValue);
  CHECK(cudaMemcpyAsync(a.p, v.data(), 4, static_cast<cudaMemcpyKind>(5), s.s) ==
        cudaErrorInvalidMemcpyDirection);
  cudaGetLastError();
}

TEST_CASE("a copy that overlaps itself") {
  stream s;
  device_array<std::int32_t> a(8);
  REQUIRE(cudaMemcpyAsync(a.p, a.p + 1, 28, cudaMemcpyDeviceToDevice, s.s) == cudaSuccess);
  s.finish();
  CHECK(found("a copy of 28 bytes overlaps itself"));
}

TEST_CASE("frees that are wrong") {
  void* d = nullptr;
  void* p = nullptr;
  int on_the_stack = 0;
  REQUIRE(cudaMalloc(&d, 100) == cudaSuccess);
  REQUIRE(cudaMallocHost(&p, 100) == cudaSuccess);
  CHECK(cudaFree(p) == cudaErrorInvalidValue);
  CHECK(found("cudaFree of pinned memory"));
  CHECK(cudaFreeHost(d) == cudaErrorInvalidValue);
  CHECK(found("cudaFreeHost of device memory"));
  CHECK(cudaFree(static_cast<char*>(d) + 16) == cudaErrorInvalidValue);
  CHECK(found("no allocation begins at"));
  CHECK(cudaFree(&on_the_stack) == cudaErrorInvalidValue);
  CHECK(found("not the device's"));
  CHECK(cudaFree(d) == cudaSuccess);
  CHECK(cudaFreeHost(p) == cudaSuccess);
  CHECK(cudaFree(d) == cudaErrorInvalidValue);
  CHECK(found("cudaFree of an address"));
  CHECK(cudaFreeHost(p) == cudaErrorInvalidValue);
  CHECK(found("cudaFreeHost of an address"));
  CHECK(cudaFree(nullptr) == cudaSuccess);
  cudaGetLastError();
}

TEST_CASE("memory that goes while a copy is on its way ends the device") {
  with_settings back({});
  stream s;
  gate g;
  REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
  {
    device_array<std::int32_t> a(4), b(4);
    REQUIRE(cudaMemcpyAsync(a.p, b.p, 16, cudaMemcpyDeviceToDevice, s.s) == cudaSuccess);
  }
  g.open = true;
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorIllegalAddress);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, 8) == cudaErrorIllegalAddress);
  CHECK(found("a copy runs after its memory was freed"));
}

TEST_CASE("a device has so much memory, and what does not fit leaves no lasting error") {
  cs::options o;
  o.memory_bytes = 1 << 20;
  with_settings back(o);
  std::size_t free_bytes = 0, total = 0;
  const auto before = cs::held();
  device_array<char> a(3 << 18);
  REQUIRE(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
  CHECK(total == 1 << 20);
  CHECK(free_bytes == 1 << 18);
  void* p = &free_bytes;
  CHECK(cudaMalloc(&p, (1 << 18) + 1) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
  CHECK(cudaMalloc(&p, ~std::size_t{0}) == cudaErrorMemoryAllocation);
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&p, 1 << 18) == cudaSuccess);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cs::held().device_bytes == before.device_bytes + (3 << 18));
  CHECK(cudaMalloc(&p, 0) == cudaSuccess);
  CHECK(p == nullptr);
}

TEST_CASE("what is not given back is counted") {
  const auto before = cs::held();
  {
    stream s;
    event e;
    device_array<char> a(10);
    pinned_array<char> p(20);
    const auto now = cs::held();
    CHECK(now.streams == before.streams + 1);
    CHECK(now.events == before.events + 1);
    CHECK(now.device_bytes == before.device_bytes + 10);
    CHECK(now.pinned_bytes == before.pinned_bytes + 20);
  }
  CHECK(cs::held() == before);
}

TEST_CASE("the host cannot touch device memory, nor pinned memory that is gone" *
          doctest::skip(!catches_faults)) {
  int status = 0;
  device_array<std::int32_t> a(4);
  CHECK(end_of_a_process_that([&] { *static_cast<volatile std::int32_t*>(a.p) = 1; }, status)
            .find("host code touches device memory") != std::string::npos);
  CHECK(segmentation(status));
  pinned_array<char> p(256);
  volatile char* const v = p.p;
  v[255] = 1;
  CHECK(end_of_a_process_that([&] { v[256] = 1; }, status).find("outside its allocation") !=
        std::string::npos);
  CHECK(segmentation(status));
  volatile char* gone = nullptr;
  {
    pinned_array<char> q(16);
    gone = q.p;
  }
  end_of_a_process_that([&] { gone[3] = 1; }, status);
  CHECK(segmentation(status));
  end_of_a_process_that([&] { v[0] = 1; }, status);
  CHECK(WIFEXITED(status));
}

TEST_CASE("a program that leaks, or ends with findings, fails" * doctest::skip(!ends_plainly)) {
  int status = 0;
  const std::string text = end_of_a_process_that(
      [] {
        void* p = nullptr;
        cudaMallocHost(&p, 1234);
        std::exit(0);
      },
      status);
  CHECK(text.find("pinned allocation number") != std::string::npos);
  CHECK(text.find("1234 bytes, was not freed") != std::string::npos);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 86);
  end_of_a_process_that([] { std::exit(0); }, status);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("what is written beside an allocation shows when it goes") {
  void* p = nullptr;
  REQUIRE(cudaMallocHost(&p, 10) == cudaSuccess);
  volatile char* const v = static_cast<char*>(p);
  v[10] = 1;
  CHECK(cudaFreeHost(p) == cudaSuccess);
  CHECK(found("something wrote behind an allocation of 10 bytes"));
  REQUIRE(cudaMallocHost(&p, 10) == cudaSuccess);
  volatile char* const w = static_cast<char*>(p);
  w[-1] = 1;
  CHECK(cudaFreeHost(p) == cudaSuccess);
  CHECK(found("something wrote in front of an allocation"));
}
