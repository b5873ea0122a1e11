// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA backend holds and gives back, on the stand-in: when destructors' calls fail, when the device
// or a host task does, with adopted streams, events that stay, and two devices.
#include "stand_in_tools.hpp"

#include <plateau/cuda.hpp>
#include <plateau/kernels.hpp>

#include <cublas_v2.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
namespace cs = stand_in::cs;
using pl::in;
using pl::index_t;
using pl::inout;
using pl::out;
using pl::view;

namespace {

using backend = pl::cuda_backend;
template <class T> using on_device = pl::device_buffer<T, backend>;
template <class T> using on_host = pl::pinned_buffer<T, backend>;

struct add_one {
  template <class T> PLATEAU_HD void operator()(index_t i, view<T> x) const { x[i] += 1; }
};
struct sum_row {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> x, view<float> sums) const {
    const float* const row = x.row(r);
    const float sum = team.reduce(x.cols, 0.0F, pl::plus{}, [=](index_t i) { return row[i]; });
    team.once([=] { sums[r] = sum; });
  }
};
struct write_behind { // beyond what the view holds
  PLATEAU_HD void operator()(index_t, view<float> x) const { x.p[x.n + 1024] = 1; }
};

// Every operation of the backend once, from its beginning to its end. The sum of what came out.
double everything_once() {
  backend b("rank 0");
  on_device<float> x(b.device(), 64, pl::tag::other), y(b.device(), 64, pl::tag::other),
      sums(b.device(), 8, pl::tag::other);
  on_host<float> h(b.pinned(), 64, pl::tag::other), g(b.pinned(), 64, pl::tag::other);
  on_device<std::int32_t> ids(b.device(), 5, pl::tag::other), order(b.device(), 5, pl::tag::other);
  on_device<std::int64_t> offsets(b.device(), 4, pl::tag::other), scanned(b.device(), 5, pl::tag::other);
  on_host<std::int64_t> total(b.pinned(), 1, pl::tag::other);
  on_host<std::int32_t> few(b.pinned(), 5, pl::tag::other);
  on_device<unsigned char> scratch(b.device(),
                                   static_cast<index_t>(backend::gemm_scratch_bytes<float, float, float>(
                                       pl::transpose::no, pl::transpose::no, 8, 8, 8)),
                                   pl::tag::other);
  auto s = b.make_stream("main");
  auto side = b.make_stream("side");
  for (index_t i = 0; i < 64; ++i) h.data()[i] = static_cast<float>(i);
  for (index_t i = 0; i < 5; ++i) few.data()[i] = static_cast<std::int32_t>(i % 3);

  b.copy(s, in(h.all()), out(x.all()));
  b.launch(s, pl::elements{64}, add_one{}, inout(x.all()));
  b.gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, in(x.matrix(8, 8)), in(x.matrix(8, 8)), 0.0F,
         out(y.matrix(8, 8)), scratch.all());
  const pl::tile_batch<float> halves{x.data(), 2, 32, 4, 8, 8}, squares{y.data(), 2, 16, 4, 4, 4};
  b.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, in(halves), in(halves), 0.0F, out(squares),
         scratch.all());
  const pl::gemm_group<float, float, float> two[] = {
      {x.matrix(2, 4), x.matrix(4, 2), y.matrix(2, 2)},
      {x.matrix(2, 4), x.matrix(4, 2), pl::tile<float>{y.data() + 32, 2, 2, 2}}};
  b.grouped_gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, 1.0F,
                 std::span<const pl::gemm_group<float, float, float>>(two), scratch.all());
  b.launch(s, pl::rows{8}, sum_row{}, in(x.matrix(8, 8)), out(sums.all()));
  b.copy(s, in(pl::tile<float>{x.data(), 4, 4, 8}), out(pl::tile<float>{y.data(), 4, 4, 16}));
  b.wait(side, b.record(s));
  b.copy(side, in(few.all()), out(ids.all()));
  b.group_by_key(side, in(ids.all()), out(order.all()), out(offsets.all()), scratch.all());
  b.exclusive_scan(side, in(offsets.all()), out(scanned.all()), scratch.all());
  b.copy(side, in(scanned.all().sub(4, 1)), out(total.all()));
  b.copy(side, in(y.all()), out(h.all()));
  b.host_task(
      side,
      [](view<const float, pl::host_space> from, view<float, pl::host_space> to) { to[0] = 2 * from[0]; },
      in(h.all()), inout(g.all()));
  b.wait(s, b.record(side)); // takes over what the host task may have thrown
  const auto ready = b.record(s);
  std::int64_t last = 0;
  b.fetch(ready, in(total.all()), std::span(&last, 1), "total", std::int64_t{0});
  b.wait(ready);
  return static_cast<double>(last) + static_cast<double>(g.data()[0]);
}

bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
template <class Error, class F> std::string refusal(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(nothing was thrown)";
}

} // namespace

TEST_CASE("calls of destructors that fail do no harm, and are not reported by a later call") {
  const double expected = everything_once();
  for (const char* name : {"cudaFree", "cudaFreeHost", "cudaStreamSynchronize", "cudaStreamDestroy",
                           "cudaEventDestroy", "cublasDestroy"}) {
    const auto before = cs::held();
    const auto first = cs::calls_of(name);
    CHECK(everything_once() == expected);
    const auto calls = cs::calls_of(name) - first;
    CHECK(calls > 0);
    for (std::uint64_t n = 1; n <= calls; ++n) {
      INFO(name << ", call " << n);
      cs::fail_call(name, n, cudaErrorUnknown);
      CHECK(everything_once() == expected);
      CHECK(cs::take_failed_call() == name);
      CHECK(cudaPeekAtLastError() == cudaSuccess);
      CHECK(stand_in::findings() == "");
      if (std::string(name) != "cudaStreamSynchronize" && std::string(name) != "cublasDestroy")
        CHECK(cs::held() != before); // what was not given back stays
      cs::give_everything_back();
      cs::give_blas_handles_back();
      CHECK(cs::held() == before);
    }
  }
}

TEST_CASE("a device that is not there") {
  cs::options o;
  o.devices = 3;
  const stand_in::with_settings back(o);
  for (const int device : {3, -1}) {
    const std::string text = refusal<pl::backend_error>([&] { backend b("rank 2", device); });
    CHECK(has(text, "rank 2: CUDA device " + std::to_string(device)));
    CHECK(has(text, "only devices 0 to 2"));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
  }
}

TEST_CASE("memory that does not fit: how much was asked for, how much there is, and the next request works") {
  cs::options o;
  o.memory_bytes = std::size_t{1} << 20;
  const stand_in::with_settings back(o);
  backend b;
  const std::string text =
      refusal<pl::backend_error>([&] { on_device<char> x(b.device(), 3 << 20, pl::tag::other); });
  CHECK(has(text, "3145728 bytes of device memory"));
  CHECK(has(text, "1048576 of 1048576 free"));
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  CHECK(b.device().meter().current() == 0);
  const on_device<char> y(b.device(), 1000, pl::tag::other);
  CHECK(b.device().meter().current() == 1000);
}

TEST_CASE("O13: pinning that fails is told at once, and not again by a later call") {
  backend b;
  cs::fail_call("cudaMallocHost", 1, cudaErrorMemoryAllocation);
  const std::string text =
      refusal<pl::backend_error>([&] { on_host<char> x(b.pinned(), 4096, pl::tag::other); });
  CHECK(has(text, "4096 bytes of pinned host memory"));
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  CHECK(b.pinned().meter().current() == 0);
  const on_host<char> y(b.pinned(), 4096, pl::tag::other);
}

TEST_CASE("a kernel that leaves its memory: whoever waits is told, and everything goes in peace" *
          doctest::skip(!stand_in::catches_faults)) {
  const auto before = cs::held();
  {
    const stand_in::with_settings back({});
    backend b;
    on_device<float> x(b.device(), 4, pl::tag::other);
    auto s = b.make_stream("main");
    b.launch(s, pl::elements{1}, write_behind{}, inout(x.all()));
    // Recording may be late enough to be told already.
    const std::string text = refusal<pl::backend_error>([&] { b.wait(b.record(s)); });
    CHECK(has(text, "cudaErrorIllegalAddress"));
    CHECK(has(text, "compute-sanitizer"));
    CHECK(stand_in::found("a kernel touches memory that is not its own"));
  }
  CHECK(cs::held() == before);
}

TEST_CASE("host tasks that throw: behind them nothing of the host runs, and streams that wait fail as well") {
  backend b;
  on_host<float> h(b.pinned(), 1, pl::tag::other);
  h.data()[0] = 1;
  auto s = b.make_stream("main");
  auto other = b.make_stream("other");
  const auto early = b.record(s);
  b.host_task(
      s, [](view<float, pl::host_space>) { throw std::runtime_error("the task failed"); }, inout(h.all()));
  b.host_task(
      s, [](view<float, pl::host_space> v) { v[0] = 2; }, inout(h.all()));
  const auto late = b.record(s);
  b.wait(other, late);
  b.host_task(
      other, [](view<float, pl::host_space> v) { v[0] = 3; }, inout(h.all()));
  const auto there = b.record(other);
  b.wait(early);
  for (const auto* e : {&late, &there}) {
    const std::string text = refusal<std::exception>([&] { b.wait(*e); });
    CHECK(has(text, "the task failed"));
    CHECK(has(text, "'main'"));
  }
  CHECK(h.data()[0] == 1);
}

TEST_CASE("adopted streams stay their owner's, in order with what the owner issues") {
  const stand_in::stream theirs;
  const auto before = cs::held();
  const auto destroyed = cs::calls_of("cudaStreamDestroy"), waited = cs::calls_of("cudaStreamSynchronize");
  {
    backend b;
    const on_device<float> x(b.device(), 4, pl::tag::other);
    const on_host<float> h(b.pinned(), 4, pl::tag::other);
    {
      auto s = b.make_stream(pl::cuda_stream_ref{theirs.s}, "theirs");
      CHECK(!s.owned());
      REQUIRE(cudaMemsetAsync(x.data(), 0, 16, theirs.s) == cudaSuccess);
      b.launch(s, pl::elements{4}, add_one{}, inout(x.all()));
      b.copy(s, in(x.all()), out(h.all()));
    }
    CHECK(cs::calls_of("cudaStreamDestroy") == destroyed);
    CHECK(cs::calls_of("cudaStreamSynchronize") == waited);
    theirs.finish();
    CHECK(h.data()[3] == 1);
  }
  CHECK(cs::held() == before);
}

TEST_CASE("events outlive their stream and their backend") {
  const auto before = cs::held();
  {
    backend::event late, moved;
    {
      backend b;
      auto s = b.make_stream("main");
      late = b.record(s);
      moved = b.record(s);
    }
    late.wait();
    backend other;
    auto t = other.make_stream("other");
    other.wait(t, late);
    other.wait(moved);
    moved = std::move(late);
  }
  CHECK(cs::held() == before);
}

TEST_CASE("O14: the same streams and events serve every step") {
  backend b;
  on_device<float> x(b.device(), 64, pl::tag::other);
  auto s = b.make_stream("main");
  auto side = b.make_stream("side");
  const auto step = [&] {
    b.launch(s, pl::elements{64}, add_one{}, inout(x.all()));
    b.wait(side, b.record(s));
    b.wait(s, b.record(side));
    b.wait(b.record(s));
  };
  step();
  const auto before = cs::held();
  for (int i = 0; i < 50; ++i) step();
  CHECK(cs::held() == before);
}

TEST_CASE("two devices: a backend's streams, memory and products are its own device's") {
  cs::options o;
  o.devices = 2;
  const stand_in::with_settings back(o);
  {
    backend b("rank 1", 1);
    CHECK(b.device_number() == 1);
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 1);
    CHECK(cs::held().streams == 0);
    everything_once(); // on device 0, which is current afterwards
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    on_device<float> x(b.device(), 64, pl::tag::other);
    auto s = b.make_stream("main");
    b.launch(s, pl::elements{64}, add_one{}, inout(x.all()));
    b.wait(b.record(s));
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}
