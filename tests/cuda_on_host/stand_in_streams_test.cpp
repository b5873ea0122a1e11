// SPDX-License-Identifier: Apache-2.0
//
// The stand-in's streams, events and host functions.
#include "stand_in_tools.hpp"

#include <thread>
#include <vector>

using namespace stand_in;

namespace {

void append_number(void* p) {
  auto* v = static_cast<std::vector<int>*>(p);
  v->push_back(static_cast<int>(v->size()));
}

} // namespace

TEST_CASE("what is appended runs in order, and later") {
  stream s;
  gate g;
  std::vector<int> v;
  REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
  for (int i = 0; i < 5; ++i) REQUIRE(cudaLaunchHostFunc(s.s, append_number, &v) == cudaSuccess);
  CHECK(cudaStreamQuery(s.s) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  CHECK(v.empty());
  g.open = true;
  s.finish();
  CHECK(v == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(cudaStreamQuery(s.s) == cudaSuccess);
}

TEST_CASE("an event is as late as what was appended before its newest record") {
  stream a, b;
  event e;
  gate g, after;
  CHECK(cudaEventQuery(e.e) == cudaSuccess); // never recorded
  CHECK(cudaEventSynchronize(e.e) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(b.s, e.e) == cudaSuccess);
  after.open = true;
  REQUIRE(cudaEventRecord(e.e, b.s) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(e.e) == cudaSuccess);

  REQUIRE(cudaLaunchHostFunc(a.s, gate::wait, &g) == cudaSuccess);
  REQUIRE(cudaEventRecord(e.e, a.s) == cudaSuccess); // the second record replaces the first
  CHECK(cudaEventQuery(e.e) == cudaErrorNotReady);
  REQUIRE(cudaStreamWaitEvent(b.s, e.e) == cudaSuccess);
  // A wait keeps to the record that it saw.
  stream c;
  REQUIRE(cudaEventRecord(e.e, c.s) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(e.e) == cudaSuccess);
  CHECK(cudaStreamQuery(b.s) == cudaErrorNotReady);
  g.open = true;
  b.finish();
  CHECK(g.passed == 1);
  cudaGetLastError();
}

TEST_CASE("an event may go while its record is under way, and a stream with work in flight") {
  gate g;
  std::vector<int> v;
  {
    stream s, other;
    event e;
    REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
    REQUIRE(cudaEventRecord(e.e, s.s) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(other.s, e.e) == cudaSuccess);
    REQUIRE(cudaLaunchHostFunc(other.s, append_number, &v) == cudaSuccess);
  }
  CHECK(g.passed == 0);
  g.open = true;
  cs::wait_for_closed_streams();
  CHECK(v.size() == 1);
}

TEST_CASE("times between events") {
  stream s;
  event a(cudaEventDefault), b(cudaEventDefault), untimed;
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, a.e, b.e) == cudaErrorInvalidResourceHandle); // not recorded
  gate g;
  REQUIRE(cudaEventRecord(a.e, s.s) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
  REQUIRE(cudaEventRecord(b.e, s.s) == cudaSuccess);
  REQUIRE(cudaEventRecord(untimed.e, s.s) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&ms, a.e, b.e) == cudaErrorNotReady);
  g.open = true;
  s.finish();
  CHECK(cudaEventElapsedTime(&ms, a.e, b.e) == cudaSuccess);
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, a.e, untimed.e) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_CASE("calls in a host function are refused and found") {
  stream s;
  static cudaError_t result = cudaSuccess;
  REQUIRE(cudaLaunchHostFunc(
              s.s, [](void*) { result = cudaStreamQuery(nullptr); }, nullptr) == cudaSuccess);
  s.finish();
  CHECK(result == cudaErrorNotPermitted);
  CHECK(found("cudaStreamQuery is called in a host function"));
}

TEST_CASE("an exception that leaves a host function ends the device") {
  with_settings back({});
  stream s;
  std::vector<int> v;
  gate g; // calls are refused as soon as the device has failed
  REQUIRE(cudaLaunchHostFunc(s.s, gate::wait, &g) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(
              s.s, [](void*) { throw 1; }, nullptr) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(s.s, append_number, &v) == cudaSuccess);
  g.open = true;
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorLaunchFailure);
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorLaunchFailure); // it stays
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(v.empty()); // what comes later does not run
  CHECK(found("an exception leaves a host function"));
}

TEST_CASE("host functions of all streams run one at a time, unless told otherwise") {
  for (const bool serial : {true, false}) {
    cs::options o;
    o.serial_host_functions = serial;
    with_settings back(o);
    stream a, b;
    gate g;
    std::vector<int> v;
    REQUIRE(cudaLaunchHostFunc(a.s, gate::wait, &g) == cudaSuccess);
    // Once the first one runs, the second one has to wait for it.
    REQUIRE(cudaLaunchHostFunc(b.s, append_number, &v) == cudaSuccess);
    if (!serial) {
      b.finish();
      CHECK(v.size() == 1);
    }
    g.open = true;
    a.finish();
    b.finish();
    CHECK(v.size() == 1);
  }
}

TEST_CASE("stale and foreign handles") {
  cudaStream_t s = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaErrorInvalidResourceHandle);
  CHECK(found("a stream is used that does not exist"));
  CHECK(cudaStreamDestroy(s) == cudaErrorInvalidResourceHandle);
  CHECK(found("cudaStreamDestroy of a stream that does not exist"));
  cudaEvent_t e = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaEventDestroy(e) == cudaSuccess);
  CHECK(cudaEventQuery(e) == cudaErrorInvalidResourceHandle);
  CHECK(found("an event is used"));
  CHECK(cudaEventDestroy(e) == cudaErrorInvalidResourceHandle);
  CHECK(found("cudaEventDestroy"));
  CHECK(cudaStreamCreateWithFlags(&s, 7) == cudaErrorInvalidValue);
  CHECK(cudaEventCreateWithFlags(&e, 64) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("devices: one current for each thread, and whose streams and events go together") {
  cs::options o;
  o.devices = 2;
  with_settings back(o);
  int n = 0, current = -1;
  CHECK(cudaGetDeviceCount(&n) == cudaSuccess);
  CHECK(n == 2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  std::thread([&] { cudaGetDevice(&current); }).join();
  CHECK(current == 0);
  {
    stream on_one;
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    event on_zero;
    CHECK(cudaEventRecord(on_zero.e, on_one.s) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamWaitEvent(on_one.s, on_zero.e) == cudaSuccess);
    int device = -1;
    CHECK(cudaStreamGetDevice(on_one.s, &device) == cudaSuccess);
    CHECK(device == 1);
  }
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("no device, and a driver that is too old") {
  int n = 7, version = 0;
  void* p = nullptr;
  {
    cs::options o;
    o.devices = 0;
    with_settings back(o);
    CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
    CHECK(n == 0);
    CHECK(cudaMalloc(&p, 16) == cudaErrorNoDevice);
  }
  cs::options o;
  o.driver_version = 12020;
  with_settings back(o);
  CHECK(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
  CHECK(cudaMallocHost(&p, 16) == cudaErrorInsufficientDriver);
  CHECK(cudaDriverGetVersion(&version) == cudaSuccess);
  CHECK(version == 12020);
  CHECK(cudaRuntimeGetVersion(&version) == cudaSuccess);
  CHECK(version == 13000);
}

TEST_CASE("calls are counted, and any of them can fail") {
  const auto before = cs::calls_of("cudaGetDevice");
  int device = 0;
  cs::fail_call("cudaGetDevice", 2, cudaErrorUnknown);
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(cudaGetDevice(&device) == cudaErrorUnknown);
  CHECK(cudaPeekAtLastError() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaErrorUnknown);
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(cs::calls_of("cudaGetDevice") == before + 3);
  cs::fail_any_call(1, cudaErrorDevicesUnavailable);
  CHECK(cudaSetDevice(0) == cudaErrorDevicesUnavailable);
  CHECK(std::string(cudaGetErrorName(cudaGetLastError())) == "cudaErrorDevicesUnavailable");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  CHECK(std::string(cudaGetErrorName(static_cast<cudaError_t>(998))) == "unrecognized error code");
}

TEST_CASE("delays do not change an order") {
  cs::options o;
  o.delay_microseconds = 200;
  with_settings back(o);
  stream a, b;
  event e;
  std::vector<int> v;
  for (int i = 0; i < 20; ++i) {
    REQUIRE(cudaLaunchHostFunc(a.s, append_number, &v) == cudaSuccess);
    REQUIRE(cudaEventRecord(e.e, a.s) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(b.s, e.e) == cudaSuccess);
    REQUIRE(cudaLaunchHostFunc(b.s, append_number, &v) == cudaSuccess);
    REQUIRE(cudaEventRecord(e.e, b.s) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(a.s, e.e) == cudaSuccess);
  }
  a.finish();
  b.finish();
  CHECK(v.size() == 40);
  for (int i = 0; i < 40; ++i) CHECK(v[static_cast<std::size_t>(i)] == i);
}
